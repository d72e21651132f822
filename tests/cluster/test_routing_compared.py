"""Routing policies compared in virtual time: hits, balance and first tokens, on production schedulers.

20 prompts of 1,008 tokens, each request with 150 tokens of its own behind one of them, four replicas whose
pools hold eight prompts each. Run with `-s` to see the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

import pytest

from cluster.policies import POLICIES, routing_policy
from cluster.routing import Routing
from engine.block_hash import hash_block, hash_blocks
from engine.config import BLOCK_SIZE
from engine.request import Request, SamplingParams
from tests.builders import ROOT
from tests.cluster.virtual_fleet import FleetConfig, Outcome, VirtualFleet

PREFIX_TOKENS = 1008
SUFFIX_TOKENS = 150
OUTPUT_TOKENS = 16
NUM_PROMPTS = 20
BLOCKS_PER_REQUEST = -(-(PREFIX_TOKENS + SUFFIX_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
FLEET = FleetConfig(num_blocks=1 + 8 * BLOCKS_PER_REQUEST)
EVEN = (1,) * NUM_PROMPTS
HOT = (76, *EVEN[1:])
"""80 % of the load on one prompt."""


class Workload(NamedTuple):
    requests: Sequence[Request]
    prompts: Sequence[int]
    """Which one each request begins with."""

    @property
    def ideal_hit_tokens(self) -> int:
        """Each prompt computed once, and never evicted."""
        return PREFIX_TOKENS * (len(self.prompts) - len(set(self.prompts)))


def request(number: int, token_ids: tuple[int, ...], block_hashes: Sequence[bytes]) -> Request:
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    return Request(
        request_id=str(number),
        prompt_token_ids=token_ids,
        sampling=sampling,
        hash_root=ROOT,
        block_hashes=tuple(block_hashes),
    )


@cache
def shared_prefixes(weights: tuple[int, ...], num_requests: int) -> Workload:
    rng = Random(1)
    prefixes = [tuple(range(number << 12, (number << 12) + PREFIX_TOKENS)) for number in range(len(weights))]
    hashes = [hash_blocks(ROOT, prefix, BLOCK_SIZE) for prefix in prefixes]
    prompts = rng.choices(range(len(weights)), weights, k=num_requests)
    requests = []
    for number, prompt in enumerate(prompts):
        start = (1 << 20) + number * SUFFIX_TOKENS
        suffix = tuple(range(start, start + SUFFIX_TOKENS))
        parent = hashes[prompt][-1]
        behind = []
        for at in range(0, SUFFIX_TOKENS - BLOCK_SIZE + 1, BLOCK_SIZE):
            parent = hash_block(parent, suffix[at : at + BLOCK_SIZE])
            behind.append(parent)
        requests.append(request(number, prefixes[prompt] + suffix, [*hashes[prompt], *behind]))
    return Workload(requests, prompts)


@cache
def run(policy: Routing, weights: tuple[int, ...], num_clients: int, num_requests: int = 800) -> Outcome:
    workload = shared_prefixes(weights, num_requests)
    return VirtualFleet(routing_policy(policy), FLEET).run(workload.requests, num_clients)


def poisson(rate: float, count: int) -> list[float]:
    rng = Random(2)
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))


def hit_share(outcome: Outcome, workload: Workload) -> float:
    return outcome.hit_tokens / workload.ideal_hit_tokens


@pytest.mark.parametrize("num_clients", [16, 32])
def test_token_load_reaches_nine_tenths_of_an_ideal_placements_hits(num_clients: int) -> None:
    outcome = run("token-load", EVEN, num_clients)
    assert hit_share(outcome, shared_prefixes(EVEN, 800)) >= 0.95


@pytest.mark.parametrize("num_clients", [16, 32])
def test_with_one_prompt_hot_token_load_is_balanced_and_still_hits(num_clients: int) -> None:
    outcome, affinity = run("token-load", HOT, num_clients), run("affinity", HOT, 32)
    assert outcome.max_over_mean <= 1.35
    assert outcome.hit_tokens >= 0.9 * affinity.hit_tokens
    assert affinity.max_over_mean > 3, "the load is too even to prove anything"


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
    workload = shared_prefixes(weights, 800)
    capacity = 800 / run("token-load", weights, 32).ended_s
    outcome = VirtualFleet(routing_policy("token-load"), FLEET).run(
        workload.requests, poisson(0.9 * capacity, 800)
    )
    computed = Counter(
        prompt
        for number, prompt in enumerate(workload.prompts)
        if outcome.cached_tokens[str(number)] < PREFIX_TOKENS
    )
    assert max(computed.values()) <= 2 * FLEET.num_replicas, "of 40 to 640 requests"
    assert computed.total() <= 0.08 * 800


def test_a_burst_of_one_cold_prompt_stays_together_until_the_wait_is_longer() -> None:
    workload = shared_prefixes((1,), 40)
    outcome = VirtualFleet(routing_policy("token-load"), FLEET).run(workload.requests, [0.0] * 40)
    assert len(set(outcome.chosen[:2])) == 1, "to compute it elsewhere costs more than to wait for one"
    computed = sum(cached < PREFIX_TOKENS for cached in outcome.cached_tokens.values())
    assert computed <= 2 * FLEET.num_replicas, "and most find it there"


def test_prompts_without_text_in_common_are_balanced_as_by_two_choices_or_better() -> None:
    rng = Random(3)
    requests = []
    for number in range(300):
        start, length = number << 12, rng.randint(100, 1000)
        token_ids = tuple(range(start, start + length))
        requests.append(request(number, token_ids, hash_blocks(ROOT, token_ids, BLOCK_SIZE)))
    arrivals = poisson(0.8 * FLEET.tokens_per_s / (550 + OUTPUT_TOKENS), 300)
    ours = VirtualFleet(routing_policy("token-load"), FLEET).run(requests, arrivals)
    least = VirtualFleet(routing_policy("least-load"), FLEET).run(requests, arrivals)
    theirs = VirtualFleet(routing_policy("power-of-two"), FLEET).run(requests, arrivals)
    assert ours.max_over_mean <= theirs.max_over_mean
    assert ours.ttft_p99_s <= theirs.ttft_p99_s
    assert ours.chosen == least.chosen, "with nothing cached it is least load"


def test_the_same_seed_gives_the_same_run() -> None:
    workload = shared_prefixes(HOT, 100)
    once, again = (VirtualFleet(routing_policy("token-load"), FLEET).run(workload.requests, 16) for _ in "ab")
    assert once == again
