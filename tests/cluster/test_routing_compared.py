"""Routing policies compared in virtual time: hits, balance and first tokens, on production schedulers.

20 prompts of 1,008 tokens, each request with 150 tokens of its own behind one of them, four replicas whose
pools hold eight prompts each. Run with `-s` to see the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

import pytest

from cluster.policies import POLICIES
from cluster.routing import Routing
from engine.block_hash import hash_blocks
from engine.config import BLOCK_SIZE, EngineConfig
from loadtest.fleet.call import Ask, Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.run import FleetRun
from loadtest.fleet.traffic import ClosedLoopTraffic
from loadtest.in_flight import replica_figures
from loadtest.percentiles import percentile
from tests.builders import ROOT

PREFIX_TOKENS = 1008
SUFFIX_TOKENS = 150
OUTPUT_TOKENS = 16
NUM_PROMPTS = 20
BLOCKS_PER_REQUEST = -(-(PREFIX_TOKENS + SUFFIX_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
NUM_BLOCKS = 1 + 8 * BLOCKS_PER_REQUEST
FLEET = FleetConfig(
    EngineConfig(num_blocks=NUM_BLOCKS, max_model_len=BLOCK_SIZE * (NUM_BLOCKS - 1)),
    link_delay_s=0.0,
).first_come()
"""What is compared is who is chosen: all may be chosen at any time."""
EVEN = (1,) * NUM_PROMPTS
HOT = (76, *EVEN[1:])
"""80 % of the load on one prompt."""
SOME_AT_ONCE = pytest.mark.parametrize("num_clients", [pytest.param(16, marks=pytest.mark.soak), 32])


class Workload(NamedTuple):
    asks: Sequence[Ask]
    prompts: Sequence[int]
    """Which one each begins with."""

    @property
    def ideal_hit_tokens(self) -> int:
        """Each prompt computed once, and never evicted."""
        return PREFIX_TOKENS * (len(self.prompts) - len(set(self.prompts)))


class Outcome:
    """A run, as far as it tells of routing."""

    def __init__(self, run: FleetRun) -> None:
        by_number = {call.ask_number: call.record for call in run.calls}
        assert all(record.is_ok for record in by_number.values())
        records = [by_number[number] for number in sorted(by_number)]
        self.chosen = [record.replica for record in records]
        self.cached_tokens = [record.cached_tokens for record in records]
        self.hit_tokens = sum(self.cached_tokens)
        self.ttft_p99_s = percentile([record.ttft_s or 0.0 for record in records], 99) or 0.0
        self.ended_s = run.ended_s
        while_they_come = [record for record in records if record.finished_at <= records[-1].sent_at]
        self.max_over_mean: float = replica_figures(while_they_come)["in_flight_max_over_mean"] or 0.0


TENANT = Customer(ROOT.decode())


def ask(number: int, token_ids: tuple[int, ...], first_hashes: tuple[bytes, ...] = ()) -> Ask:
    return Ask(number, TENANT, token_ids, OUTPUT_TOKENS, first_hashes)


@cache
def shared_prefixes(weights: tuple[int, ...], num_requests: int) -> Workload:
    rng = Random(1)
    prefixes = [tuple(range(number << 12, (number << 12) + PREFIX_TOKENS)) for number in range(len(weights))]
    hashes = [hash_blocks(TENANT.root, prefix, BLOCK_SIZE) for prefix in prefixes]
    prompts = rng.choices(range(len(weights)), weights, k=num_requests)
    asks = []
    for number, prompt in enumerate(prompts):
        start = (1 << 20) + number * SUFFIX_TOKENS
        suffix = tuple(range(start, start + SUFFIX_TOKENS))
        asks.append(ask(number, prefixes[prompt] + suffix, hashes[prompt]))
    return Workload(asks, prompts)


def serve(policy: Routing, asks: Sequence[Ask], arrivals: int | Sequence[float]) -> Outcome:
    """`arrivals`: seconds at which the requests come; or a number of clients, each of whom sends its next as
    soon as its last is answered."""
    fleet = VirtualFleet(replace(FLEET, routing=policy))
    if isinstance(arrivals, int):
        fleet.add(ClosedLoopTraffic(lambda number: asks[number] if number < len(asks) else None, arrivals))
    else:
        for at in arrivals:
            fleet.come(at, asks.__getitem__)
    return Outcome(fleet.run())


@cache
def run(policy: Routing, weights: tuple[int, ...], num_clients: int, num_requests: int = 800) -> Outcome:
    return serve(policy, shared_prefixes(weights, num_requests).asks, num_clients)


def poisson(rate: float, count: int) -> list[float]:
    rng = Random(2)
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))


def hit_share(outcome: Outcome, workload: Workload) -> float:
    return outcome.hit_tokens / workload.ideal_hit_tokens


@SOME_AT_ONCE
def test_token_load_reaches_nine_tenths_of_an_ideal_placements_hits(num_clients: int) -> None:
    outcome = run("token-load", EVEN, num_clients)
    assert hit_share(outcome, shared_prefixes(EVEN, 800)) >= 0.95


@SOME_AT_ONCE
def test_with_one_prompt_hot_token_load_is_balanced_and_still_hits(num_clients: int) -> None:
    outcome, affinity = run("token-load", HOT, num_clients), run("affinity", HOT, 32)
    assert outcome.max_over_mean <= 1.35
    assert outcome.hit_tokens >= 0.9 * affinity.hit_tokens
    assert affinity.max_over_mean > 3, "the load is too even to prove anything"


@pytest.mark.soak
def test_beside_token_load_every_other_policy_gives_up_hits_or_balance() -> None:
    print(f"\n{'':6}{'policy':14}{'hits ÷ ideal':>14}{'max/mean in flight':>20}{'p99 TTFT, ms':>14}")
    for weights, kind in ((EVEN, "even"), (HOT, "hot")):
        workload = shared_prefixes(weights, 400)
        rows = {name: run(name, weights, 32, 400) for name in POLICIES}
        for name, row in rows.items():
            hits, ttft_ms = hit_share(row, workload), 1000 * row.ttft_p99_s
            print(f"{kind:6}{name:14}{hits:14.3f}{row.max_over_mean:20.2f}{ttft_ms:14.0f}")
        ours = rows.pop("token-load")
        for name, other in rows.items():
            gives_up_hits = other.hit_tokens < 0.95 * ours.hit_tokens
            gives_up_balance = other.max_over_mean > 1.5 * ours.max_over_mean
            assert gives_up_hits or gives_up_balance, name
            assert ours.ttft_p99_s <= other.ttft_p99_s, name


def test_overloaded_caches_do_not_churn() -> None:
    """Three times as many at once: a policy that spills by its own wait alone loses a third of the hits."""
    outcome = run("token-load", EVEN, 96, 400)
    assert hit_share(outcome, shared_prefixes(EVEN, 400)) >= 0.9


@pytest.mark.parametrize("weights", [EVEN, HOT], ids=["even", "hot"])
def test_at_nine_tenths_of_capacity_no_prefix_bounces_between_replicas(weights: tuple[int, ...]) -> None:
    """Spilt a few times: a step that makes nothing for a gateway tells it nothing, so that what it knows of
    the replicas' load is up to a heartbeat old."""
    workload = shared_prefixes(weights, 800)
    capacity = 800 / run("token-load", weights, 32).ended_s
    outcome = serve("token-load", workload.asks, poisson(0.9 * capacity, 800))
    computed = Counter(
        prompt
        for number, prompt in enumerate(workload.prompts)
        if outcome.cached_tokens[number] < PREFIX_TOKENS
    )
    assert max(computed.values()) <= 3 * FLEET.num_replicas, "of 40 to 640 requests"
    assert computed.total() <= 0.12 * 800


def test_a_burst_of_one_cold_prompt_stays_together_until_the_wait_is_longer() -> None:
    workload = shared_prefixes((1,), 40)
    outcome = serve("token-load", workload.asks, [0.0] * 40)
    assert len(set(outcome.chosen[:2])) == 1, "to compute it elsewhere costs more than to wait for one"
    computed = sum(cached < PREFIX_TOKENS for cached in outcome.cached_tokens)
    assert computed <= 2 * FLEET.num_replicas, "and most find it there"


def test_prompts_without_text_in_common_are_balanced_as_by_two_choices_or_better() -> None:
    rng = Random(3)
    asks = []
    for number in range(300):
        start, length = number << 12, rng.randint(100, 1000)
        asks.append(ask(number, tuple(range(start, start + length))))
    arrivals = poisson(0.8 * FLEET.tokens_per_s / (550 + OUTPUT_TOKENS), 300)
    ours = serve("token-load", asks, arrivals)
    least = serve("least-load", asks, arrivals)
    theirs = serve("power-of-two", asks, arrivals)
    assert ours.max_over_mean <= theirs.max_over_mean
    assert ours.ttft_p99_s <= theirs.ttft_p99_s
    assert ours.chosen == least.chosen, "with nothing cached it is least load"


def test_the_same_seed_gives_the_same_run() -> None:
    workload = shared_prefixes(HOT, 100)
    once, again = (serve("token-load", workload.asks, 16) for _ in "ab")
    assert vars(once) == vars(again)
