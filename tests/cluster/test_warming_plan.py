"""What is planned for a new replica: for which one, how much, until when; and what its engine makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from cluster.admission_windows import AdmissionWindows
from cluster.fair_policy import FairShare
from cluster.gateway_accounts import GatewayAccounts
from cluster.generation import WARMING
from cluster.hot_prefixes import HotPrefixes
from cluster.index.prefix_index import indexed
from cluster.link import Hello
from cluster.prompt_chains import PromptChains
from cluster.warming_plan import WARM_FOR_S, WARM_STEPS, WarmingPlans, warming_request
from engine.request import Request
from engine.step import StepPlan
from tests.builders import answer, make_scheduler, scheduled
from tests.cluster.fake_replica import row
from tests.cluster.test_hot_prefixes import chains_of

MODEL_ROOT = b"root"


def a_hello(name: str = "new", incarnation: int = 1, **sizes: int) -> Hello:
    defaults = {"max_model_len": 8192, "max_num_seqs": 32, "num_blocks": 8001, "max_num_batched_tokens": 2048}
    sizes = defaults | sizes
    return Hello(
        name, incarnation, "tiny", "r1", MODEL_ROOT, 16, sizes["max_model_len"], sizes["max_num_seqs"],
        sizes["num_blocks"], sizes["max_num_batched_tokens"],
    )  # fmt: skip


def hot_with(*lengths: int, times: int = 10) -> HotPrefixes[PromptChains]:
    """Prefixes of so many tokens, in this order of what they are worth."""
    hot = HotPrefixes[PromptChains]()
    for number, num_tokens in enumerate(lengths):
        for _ in range(times - number):
            prompt = chains_of(range(number * 10_000, number * 10_000 + num_tokens), b"salt")
            hot.note(prompt, indexed(prompt.of(a_hello()).block_hashes), 0.0)
    return hot


def planned(plans: WarmingPlans[PromptChains], name: str = "new", now: float = 0.0) -> list[int]:
    """Tokens of each that is to come."""
    lengths = []
    while (prompt := plans.next(name, now)) is not None:
        lengths.append(len(prompt.prompt_token_ids))
    return lengths


def plan(
    hot: HotPrefixes[PromptChains], hello: Hello, num_prefixes: int = 8, num_others: int = 1
) -> list[int]:
    plans = WarmingPlans(hot, num_prefixes)
    plans.greet(hello, num_others, 0.0)
    return planned(plans, hello.replica_id)


class TestWhoIsWarmed:
    def test_a_replica_that_comes_beside_others(self) -> None:
        assert plan(hot_with(1024, 640), a_hello()) == [1024, 640]

    def test_not_one_that_is_alone(self) -> None:
        assert plan(hot_with(1024), a_hello(), num_others=0) == []

    def test_not_one_that_has_said_hello_before(self) -> None:
        plans = WarmingPlans(hot_with(1024), 8)
        plans.greet(a_hello(), 0, 0.0)
        plans.greet(a_hello(), 1, 1.0)
        assert planned(plans, now=1.0) == []

    def test_one_that_has_started_anew_under_its_old_name(self) -> None:
        plans = WarmingPlans(hot_with(1024), 8)
        plans.greet(a_hello(), 1, 0.0)
        plans.forget("new")
        plans.greet(a_hello(incarnation=2), 1, 1.0)
        assert planned(plans, now=1.0) == [1024]

    def test_nobody_if_so_it_is_set(self) -> None:
        assert plan(hot_with(1024), a_hello(), num_prefixes=0) == []


class TestHowMuch:
    def test_no_more_prefixes_than_it_is_told(self) -> None:
        assert plan(hot_with(1024, 640, 320), a_hello(), num_prefixes=2) == [1024, 640]

    def test_none_that_fewer_requests_have_than_there_are_replicas(self) -> None:
        hot = hot_with(1024, 640, times=3)
        assert plan(hot, a_hello(), num_others=1) == [1024, 640]
        assert plan(hot, a_hello(), num_others=2) == [1024]
        assert plan(hot, a_hello(), num_others=3) == []

    def test_no_more_than_some_steps(self) -> None:
        assert plan(hot_with(2048, 2048, 640), a_hello(max_num_batched_tokens=256)) == [2048, 2048]
        assert WARM_STEPS * 256 == 4096
        assert plan(hot_with(2048, 2048), a_hello(max_num_batched_tokens=160)) == [2048, 512]

    def test_no_more_than_a_quarter_of_the_blocks(self) -> None:
        assert plan(hot_with(1024, 640), a_hello(num_blocks=321)) == [1024, 256]

    def test_no_more_than_the_context_holds_with_the_token_that_is_made(self) -> None:
        assert plan(hot_with(1024, 640), a_hello(max_model_len=1024)) == [1008, 640]

    def test_nothing_after_the_slow_start(self) -> None:
        plans = WarmingPlans(hot_with(1024, 640), 8)
        plans.greet(a_hello(), 1, 3.0)
        assert plans.next("new", 3.0) is not None
        assert plans.next("new", 3.0 + WARM_FOR_S) is None

    def test_nothing_once_it_is_gone(self) -> None:
        plans = WarmingPlans(hot_with(1024, 640), 8)
        plans.greet(a_hello(), 1, 0.0)
        plans.forget("new")
        plans.forget("never heard of")
        assert planned(plans) == []


# --- in the engine ------------------------------------------------------------------------------


def to_warm(prompt: Sequence[int], salt: bytes = b"salt", request_id: str = "warm") -> Request:
    return warming_request(request_id, tuple(prompt), *chains_of(prompt, salt).of(a_hello()))


def a_request(request_id: str, prompt: Sequence[int], salt: bytes = b"salt", priority: int = 0) -> Request:
    """Of somebody."""
    return replace(to_warm(prompt, salt, request_id), priority=priority)


class Engine:
    """The production scheduler and policy."""

    def __init__(self, **sizes: int) -> None:
        self.scheduler = make_scheduler(
            FairShare(), **{"block_size": 16, "max_num_batched_tokens": 256, "num_blocks": 401, **sizes}
        )
        self.num_cached: dict[str, int | None] = {}

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule(0.0)
        for output in self.scheduler.update(plan, answer(plan), 0.0):
            self.num_cached[output.request_id] = output.num_cached_tokens
        self.scheduler.check_integrity()
        return plan

    def run(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request, 0.0)
        while self.scheduler.has_work():
            self.step()


def test_what_was_warmed_is_cached_to_the_last_block_for_its_tenant_alone() -> None:
    engine = Engine()
    engine.run(to_warm(range(192)))
    engine.run(a_request("own", [*range(192), 7]), a_request("other", [*range(192), 7], b"another salt"))
    assert (engine.num_cached["own"], engine.num_cached["other"]) == (192, 0)


def test_to_warm_it_again_costs_a_block() -> None:
    engine = Engine()
    engine.run(to_warm(range(192)))
    engine.run(to_warm(range(192), request_id="again"))
    assert engine.num_cached["again"] == 176


@pytest.mark.parametrize("priority", [0, 1])
def test_all_requests_go_first_and_none_is_cut_for_it(priority: int) -> None:
    engine = Engine()
    engine.scheduler.add(to_warm(range(64)), 0.0)
    long = a_request("long", range(1000, 1400), priority=priority)
    engine.scheduler.add(long, 0.0)
    assert scheduled(engine.step()) == {"long": 256}
    assert scheduled(engine.step()) == {"long": 144, "warm": 64}


def test_two_gateways_that_warm_the_same_at_once_compute_it_once() -> None:
    engine = Engine()
    engine.run(to_warm(range(256), request_id="one"), to_warm(range(256), request_id="two"))
    assert (engine.num_cached["one"], engine.num_cached["two"]) == (0, 240)


def test_it_is_in_no_window_and_no_other_gateway_hears_of_it() -> None:
    """As if it were not there."""
    accounts = GatewayAccounts(AdmissionWindows(256, 32, ramp_s=0.0))
    for gateway_id in ("x", "y"):
        accounts.open(gateway_id, 0.0)
    accounts.news((), 0.0)
    accounts.news((), 0.1)
    before = accounts.told("x"), accounts.told("y")
    for number in range(100):
        accounts.add("x", to_warm(range(192), request_id=f"warm-{number}"))
    told = accounts.news([replace(row("warm-0", 0, 5, finish="length"), num_cached_tokens=0)], 1.0)
    assert (accounts.told("x"), accounts.told("y")) == before
    assert [one.request_id for one in told["x"].outputs] == ["warm-0"]
    assert "y" not in told
    assert accounts.num_live == 99


def test_it_has_the_lowest_class_and_makes_one_token() -> None:
    request = to_warm(range(64))
    assert (request.priority, request.sampling.max_tokens, request.flow.flow_id) == (WARMING, 1, "")
