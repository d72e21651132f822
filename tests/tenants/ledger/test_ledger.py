"""What a ledger does: one specification, run on memory and Redis."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.ledger import Ledger
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.reservation import Held
from tenants.ledger.state import Spend, Spends
from tenants.ledger.usage import UsageRow
from tenants.terms import Limits, Prices
from tests.tenants.ledger.builders import (
    NOON_US,
    PATIENCE_S,
    Clock,
    a_reset,
    a_top_up,
    an_ask,
    progress,
    settled,
)

EACH_TOKEN_ONE = Prices(input=10**6, cached_input=10**5, output=10**6)
DAY_S = 86_400


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
def ledger(request: pytest.FixtureRequest, clock: Clock) -> Ledger:
    if request.param == "memory":
        return MemoryLedger(clock)
    return RedisLedger(request.getfixturevalue("redis"), clock, PATIENCE_S)


async def granted(ledger: Ledger, *args: Any, **fields: Any) -> Granted:
    answer = await asked(ledger, an_ask(*args, **fields))
    assert isinstance(answer, Granted), answer
    return answer


async def refused(ledger: Ledger, *args: Any, **fields: Any) -> Refused:
    answer = await asked(ledger, an_ask(*args, **fields))
    assert isinstance(answer, Refused), answer
    return answer


async def asked(ledger: Ledger, ask: Ask) -> Granted | Refused:
    """What is told with the answer is what is found behind it."""
    answer = await ledger.reserve(ask)
    assert await ledger.standing(ask.tenant_id, ask.model, ask.scopes) == answer.standing
    return answer


def gauges(answer: Granted | Refused, field: str = "remaining") -> dict[str, Any]:
    return {gauge.kind: getattr(gauge, field) for gauge in answer.standing.gauges}


async def test_without_limits_everything_passes_and_nothing_is_told(ledger: Ledger) -> None:
    answer = await granted(ledger, prices=EACH_TOKEN_ONE)
    assert (answer.max_tokens, answer.reserved_cost, answer.standing.gauges) == (20, 30, ())


async def test_a_take_is_all_or_nothing(ledger: Ledger) -> None:
    limits = Limits(requests_per_min=5, input_tokens_per_min=100, max_concurrency=1, budget_day=1000)
    await granted(ledger, "r1", limits, prices=EACH_TOKEN_ONE)
    answer = await refused(ledger, "r2", limits, prices=EACH_TOKEN_ONE)
    assert answer.kind == "concurrency"
    assert gauges(answer) == {"requests": 4, "input_tokens": 90, "concurrency": 0, "budget_day": 970}


async def test_limits_of_a_key_hold_beside_its_tenant_s(ledger: Ledger) -> None:
    of_tenant, of_key = Limits(requests_per_min=3), Limits(requests_per_min=1)
    await granted(ledger, "r1", of_tenant, key_limits=of_key)
    answer = await refused(ledger, "r2", of_tenant, key_limits=of_key)
    assert (answer.kind, answer.key_id, answer.retry_after_s) == ("requests", "key_1", 60.0)
    await granted(ledger, "r3", of_tenant, key_limits=of_key, key_id="key_2")
    await granted(ledger, "r4", of_tenant, key_id="key_3")
    answer = await refused(ledger, "r5", of_tenant, key_id="key_3")
    assert (answer.kind, answer.key_id, answer.retry_after_s) == ("requests", None, 20.0)


async def test_rates_are_kept_apart_by_model_and_tenant(ledger: Ledger) -> None:
    limits = Limits(requests_per_min=1)
    await granted(ledger, "r1", limits)
    await refused(ledger, "r2", limits)
    await granted(ledger, "r3", limits, model="other")
    await granted(ledger, "r4", limits, tenant_id="beta")


async def test_a_rate_drains_and_resets_to_the_microsecond(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(requests_per_min=7, burst_s=60)
    for number in range(7):
        await granted(ledger, f"r{number}", limits)
    answer = await refused(ledger, "late", limits)
    assert answer.retry_after_s == 8.571429
    assert gauges(answer, "reset_s") == {"requests": 60.0}
    clock.now_us += 8_571_428
    assert (await refused(ledger, "late", limits)).retry_after_s == 0.000001
    clock.now_us += 1
    await granted(ledger, "late", limits)


async def test_a_prompt_above_the_burst_is_never_satisfiable(ledger: Ledger) -> None:
    limits = Limits(input_tokens_per_min=60, burst_s=10, budget_day=0)
    await granted(ledger, "r1", limits, prompt_tokens=10, prices=Prices())
    answer = await refused(ledger, "r2", limits, prompt_tokens=11, prices=EACH_TOKEN_ONE)
    assert (answer.kind, answer.is_never, answer.retry_after_s) == ("input_tokens", True, None)


async def test_an_estimate_of_output_never_makes_a_request_unsatisfiable(ledger: Ledger) -> None:
    limits = Limits(output_tokens_per_min=60, burst_s=60)
    answer = await granted(ledger, "r1", limits, max_tokens=4096, n=4)
    assert gauges(answer) == {"output_tokens": 0}
    assert (await refused(ledger, "r2", limits, max_tokens=30)).retry_after_s == 30.0


async def test_output_reserves_the_running_p90_and_settles_to_the_truth(ledger: Ledger) -> None:
    limits = Limits(output_tokens_per_min=6000)
    ask = an_ask("r1", limits, max_tokens=1000, n=2)
    assert gauges(await granted(ledger, "r1", limits, max_tokens=1000, n=2)) == {"output_tokens": 6000 - 512}
    await ledger.settle([settled(ask, completion_tokens=20)])
    standing = await ledger.standing("acme", "tiny", ask.scopes)
    assert standing.gauges[0].remaining == 6000 - 20
    answer = await granted(ledger, "r2", limits, max_tokens=1000)
    assert gauges(answer) == {"output_tokens": 6000 - 20 - 252}


async def test_an_answer_longer_than_estimated_leaves_a_debt(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(output_tokens_per_min=600)
    await granted(ledger, "r1", limits, max_tokens=2000)
    await ledger.settle([settled(an_ask("r1", limits, max_tokens=2000), completion_tokens=1200)])
    answer = await refused(ledger, "r2", limits, max_tokens=1)
    assert (answer.kind, answer.retry_after_s) == ("output_tokens", 60.1)
    assert gauges(answer) == {"output_tokens": 0}
    clock.advance(60.1)
    await granted(ledger, "r2", limits, max_tokens=1)


async def test_cached_prompt_tokens_are_given_back_and_cost_less(ledger: Ledger) -> None:
    limits = Limits(input_tokens_per_min=1000, budget_day=1000)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE, prompt_tokens=100)
    await granted(ledger, "r1", limits, prices=EACH_TOKEN_ONE, prompt_tokens=100)
    await ledger.settle([settled(ask, cached_tokens=80, completion_tokens=5)])
    left = {
        gauge.kind: gauge.remaining for gauge in (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    }
    assert left == {"input_tokens": 980, "budget_day": 1000 - 20 - 8 - 5}


async def test_what_was_never_served_is_given_back_the_request_too(ledger: Ledger) -> None:
    limits = Limits(
        requests_per_min=1,
        input_tokens_per_min=10,
        output_tokens_per_min=20,
        max_concurrency=1,
        budget_day=30,
    )
    for number in range(3):
        ask = an_ask(f"r{number}", limits, prices=EACH_TOKEN_ONE)
        assert isinstance(await ledger.reserve(ask), Granted)
        assert await ledger.settle([settled(ask, "unserved")]) == ["applied"]
    assert await ledger.usage("acme", "2025-11-30", "2025-11-30") == []


async def test_a_failure_of_ours_is_told_and_free(ledger: Ledger) -> None:
    ask = an_ask("r1", Limits(budget_day=30), prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    await ledger.settle([settled(ask, "failed", completion_tokens=3)])
    (row,) = await ledger.usage("acme", "2025-11-30", "2025-11-30")
    assert (row.requests, row.completion_tokens, row.cost) == (1, 3, 0)
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[0].remaining == 30


async def test_concurrency_counts_requests_until_they_are_settled(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(max_concurrency=2)
    await granted(ledger, "r1", limits)
    await granted(ledger, "r2", limits)
    answer = await refused(ledger, "r3", limits)
    assert (answer.kind, answer.retry_after_s, answer.is_never) == ("concurrency", 1.0, False)
    await ledger.settle([settled(an_ask("r1"))])
    await granted(ledger, "r3", limits)
    await refused(ledger, "r4", limits)
    clock.advance(10)
    await granted(ledger, "r4", limits)


# budgets


async def test_a_budget_reserves_the_whole_answer_and_gives_back_what_was_not_made(ledger: Ledger) -> None:
    limits = Limits(budget_day=100)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE, max_tokens=90)
    answer = await ledger.reserve(ask)
    assert isinstance(answer, Granted)
    assert (answer.max_tokens, answer.reserved_cost, gauges(answer)) == (90, 100, {"budget_day": 0})
    assert (await refused(ledger, "r2", limits, prices=EACH_TOKEN_ONE)).kind == "budget_day"
    await ledger.settle([settled(ask, completion_tokens=40)])
    assert (await granted(ledger, "r2", limits, prices=EACH_TOKEN_ONE)).reserved_cost == 30


@pytest.mark.parametrize(
    ("budget", "asked", "n", "given"),
    [
        (30, 20, 1, 20),
        (29, 20, 1, 19),
        (26, 20, 1, 16),
        (25, 20, 1, None),
        (25, 15, 1, 15),
        (24, 15, 1, None),
        (11, 1, 1, 1),
        (10, 1, 1, None),
        (9, 1, 1, None),
        (70, 20, 3, 20),
        (69, 20, 3, 19),
        (58, 20, 3, 16),
        (57, 20, 3, None),
        (0, 1, 1, None),
    ],
)
async def test_max_tokens_is_lowered_to_what_is_paid_for(
    ledger: Ledger, budget: int, asked: int, n: int, given: int | None
) -> None:
    ask = an_ask("r1", Limits(budget_month=budget), prices=EACH_TOKEN_ONE, max_tokens=asked, n=n)
    answer = await ledger.reserve(ask)
    if given is not None:
        assert isinstance(answer, Granted)
        assert (answer.max_tokens, answer.reserved_cost) == (given, 10 + n * given)
    else:
        assert isinstance(answer, Refused)
        assert (answer.kind, answer.retry_after_s, answer.is_never) == ("budget_month", None, False)


async def test_the_tightest_of_all_budgets_decides(ledger: Ledger) -> None:
    of_tenant, of_key = Limits(budget_day=1000, budget_month=28), Limits(budget_day=27, budget_month=1000)
    answer = await granted(ledger, "r1", of_tenant, key_limits=of_key, prices=EACH_TOKEN_ONE)
    assert answer.max_tokens == 17
    answer = await refused(ledger, "r2", of_tenant, key_limits=of_key, prices=EACH_TOKEN_ONE)
    assert (answer.kind, answer.key_id) == ("budget_month", None)  # both pay for nothing; the first is named


async def test_a_budget_is_named_before_a_rate_and_a_rate_by_its_wait(ledger: Ledger) -> None:
    limits = Limits(requests_per_min=1, input_tokens_per_min=10, max_concurrency=1, budget_day=30)
    await granted(ledger, "r1", limits, prices=EACH_TOKEN_ONE)
    assert (await refused(ledger, "r2", limits, prices=EACH_TOKEN_ONE)).kind == "budget_day"
    answer = await refused(ledger, "r3", limits, prompt_tokens=1)
    assert (answer.kind, answer.retry_after_s) == ("requests", 60.0)


async def test_cost_is_rounded_up_once_a_request_exactly(ledger: Ledger) -> None:
    prices = Prices(input=1, output=333_333)
    limits = Limits(budget_day=10**15)
    answer = await granted(ledger, "r1", limits, prices=prices, prompt_tokens=1, max_tokens=3)
    assert answer.reserved_cost == 1
    answer = await granted(ledger, "r2", limits, prices=prices, prompt_tokens=2, max_tokens=3)
    assert answer.reserved_cost == 2
    big = Prices(input=1, output=10**9)
    answer = await granted(ledger, "r3", limits, prices=big, prompt_tokens=1, max_tokens=9_007_199)
    assert (answer.reserved_cost, gauges(answer)) == (9_007_199_001, {"budget_day": 10**15 - 9_007_199_004})


async def test_costs_that_cannot_be_counted_exactly_are_an_error(ledger: Ledger) -> None:
    for fields in (
        {"max_tokens": 9_007_200, "prices": Prices(output=10**9)},
        {"prompt_tokens": 2**53},
        {"n": 0},
        {"max_tokens": 0},
        {"prompt_tokens": -1},
        {"started_at": float("nan")},
        {"started_at": -1.0},
        {"scopes": (Scope("key_2", Limits()),)},
    ):
        with pytest.raises(ValueError, match=r"max_tokens|prompt_tokens|n must|started_at|scopes|counted"):
            await ledger.reserve(an_ask(**fields))
    for fields in ({"cached_tokens": 11}, {"cost": -1}, {"completion_tokens": 2**53}, {"n": 0}):
        with pytest.raises(ValueError, match=r"tokens|cost|n of"):
            await ledger.settle([settled(an_ask(), **fields)])


async def test_a_day_s_budget_is_new_at_midnight_utc_and_a_month_s_at_its_end(
    ledger: Ledger, clock: Clock
) -> None:
    day, month = Limits(budget_day=30), Limits(budget_month=70)
    await granted(ledger, "r1", day, prices=EACH_TOKEN_ONE)
    clock.advance(12 * 3600 - 0.000001)
    answer = await refused(ledger, "r2", day, prices=EACH_TOKEN_ONE)
    assert gauges(answer, "reset_s") == {"budget_day": 0.000001}
    clock.advance(0.000001)
    answer = await granted(ledger, "r2", Limits(budget_day=30, budget_month=30), prices=EACH_TOKEN_ONE)
    assert gauges(answer, "reset_s") == {"budget_day": DAY_S, "budget_month": 31 * DAY_S}  # it is December
    await granted(ledger, "r3", month, prices=EACH_TOKEN_ONE)
    await refused(ledger, "r4", month, prices=EACH_TOKEN_ONE)


async def test_a_request_is_charged_to_the_windows_that_it_began_in(ledger: Ledger, clock: Clock) -> None:
    clock.advance(12 * 3600 - 1)
    limits = Limits(budget_day=1000, budget_month=1000)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE, started_at=clock.now_us / 10**6)
    await ledger.reserve(ask)
    clock.advance(2)
    await ledger.settle([settled(ask)])
    assert gauges(await granted(ledger, "r2", limits)) == {"budget_day": 1000, "budget_month": 1000}
    (row,) = await ledger.usage("acme", "2025-11-01", "2025-12-31")
    assert (row.day, row.cost) == ("2025-11-30", 30)


async def test_without_a_budget_spend_is_counted_all_the_same(ledger: Ledger) -> None:
    ask = an_ask("r1", prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    await ledger.settle([settled(ask)])
    await ledger.reserve(an_ask("r2", prices=EACH_TOKEN_ONE))
    answer = await granted(ledger, "r3", Limits(budget_day=100), key_limits=Limits(budget_month=80))
    assert gauges(answer) == {"budget_day": 40, "budget_month": 20}


async def test_a_top_up_and_a_reset_touch_one_window(ledger: Ledger) -> None:
    limits = Limits(budget_day=30, budget_month=100)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    await ledger.settle([settled(ask)])

    async def left() -> list[tuple[int, int]]:
        standing = await ledger.standing("acme", "tiny", ask.scopes)
        return [(gauge.remaining, gauge.limit) for gauge in standing.gauges]

    assert await left() == [(0, 30), (70, 100)]
    await ledger.adjust([a_top_up(12)])
    assert await left() == [(12, 42), (70, 100)]
    await ledger.adjust([a_reset(30, adjustment_id="a2")])
    assert await left() == [(42, 42), (70, 100)]
    await ledger.adjust([a_reset(30, adjustment_id="a3"), a_top_up(99, adjustment_id="a4", key_id="key_1")])
    assert await left() == [(42, 42), (70, 100)]
    await ledger.adjust([a_top_up(-50, adjustment_id="a5")])
    assert await left() == [(0, 0), (70, 100)]
    for adjustment in (a_top_up(10**15 + 1), a_reset(2**53), a_top_up(1, at=-1.0)):
        with pytest.raises(ValueError, match=r"^(amount|at) must be"):
            await ledger.adjust([adjustment])


async def test_a_reset_makes_the_whole_budget_available_top_ups_included_and_twice_is_once(
    ledger: Ledger,
) -> None:
    limits = Limits(budget_day=2_000)
    await ledger.adjust([a_top_up(1_000)])
    spender = an_ask("r1", limits, prices=EACH_TOKEN_ONE, prompt_tokens=304)
    await ledger.settle([settled(spender, completion_tokens=0)])

    async def budget() -> tuple[int, int, float]:
        (gauge,) = (await ledger.standing("acme", "tiny", spender.scopes)).gauges
        return gauge.remaining, gauge.limit, gauge.reset_s

    assert await budget() == (2_696, 3_000, DAY_S / 2)
    for number in (2, 3):
        spends = await ledger.spends("acme", None)
        assert spends.day.spent == 304
        await ledger.adjust([a_reset(spends.day.spent, adjustment_id=f"a{number}")])
        assert await budget() == (3_000, 3_000, 0)
    await ledger.settle([settled(an_ask("r2", prices=EACH_TOKEN_ONE))])
    assert await budget() == (2_970, 3_000, DAY_S / 2)


async def test_a_reset_leaves_what_runs_reserved(ledger: Ledger) -> None:
    limits = Limits(budget_day=100)
    await granted(ledger, "r1", limits, prices=EACH_TOKEN_ONE)
    await ledger.adjust([a_top_up(500), a_reset(0, adjustment_id="a2")])
    assert (await ledger.standing("acme", "tiny", an_ask("r", limits).scopes)).gauges[0].remaining == 570


async def test_an_adjustment_counts_once_by_its_id(ledger: Ledger) -> None:
    assert await ledger.adjust([a_top_up(7), a_top_up(7)]) == ["applied", "duplicate"]
    assert await ledger.adjust([a_top_up(7)]) == ["duplicate"]
    assert (await ledger.spends("acme", None)).day.credit == 7


async def test_an_adjustment_is_of_the_window_that_ran_when_it_was_made(ledger: Ledger, clock: Clock) -> None:
    clock.advance(DAY_S)  # into another month
    of_then = [a_top_up(7, adjustment_id=window, window=window) for window in ("day", "month")]
    assert await ledger.adjust(of_then) == ["applied", "applied"]
    assert await ledger.spends("acme", None) == Spends(clock(), Spend(), Spend())


async def test_spend_that_is_told_after_the_reset_that_forgave_it_is_forgiven(ledger: Ledger) -> None:
    """A ledger that was lost hears of spend and resets from several machines, in any order."""
    limits = Limits(budget_day=100)
    scopes = an_ask("r", limits).scopes
    await ledger.adjust([a_reset(60), a_reset(30, adjustment_id="a2")])
    whole = await granted(ledger, "r9", limits, prices=EACH_TOKEN_ONE, max_tokens=500)
    assert whole.max_tokens == 90, "what was forgiven and is not known to be spent is no money"
    await ledger.settle([settled(an_ask("r9"), "unserved")])
    for number, remaining in enumerate((100, 100, 70)):
        await ledger.settle([settled(an_ask(f"r{number}", prices=EACH_TOKEN_ONE))])
        assert (await ledger.standing("acme", "tiny", scopes)).gauges[0].remaining == remaining


# what a ledger that was lost is told of running requests


async def test_what_runs_is_reserved_again_once_and_settled_as_ever(ledger: Ledger) -> None:
    limits = Limits(budget_day=100, max_concurrency=1, requests_per_min=5)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE)
    for _ in range(2):
        await ledger.reopen([Held(ask, 30)])
        standing = await ledger.standing("acme", "tiny", ask.scopes)
        left = {gauge.kind: gauge.remaining for gauge in standing.gauges}
        assert left == {"requests": 5, "concurrency": 0, "budget_day": 70}
    assert await ledger.settle([settled(ask, completion_tokens=5)]) == ["applied"]
    for _ in range(2):
        assert (await ledger.spends("acme", "key_1")).day == Spend(spent=15)
        await ledger.reopen([Held(ask, 30)])


async def test_what_is_reserved_again_is_money_of_the_day_it_began_on(ledger: Ledger, clock: Clock) -> None:
    clock.advance(DAY_S)
    await ledger.reopen([Held(an_ask("r1"), 30)])
    assert await ledger.spends("acme", None) == Spends(clock(), Spend(), Spend())


async def test_a_day_that_has_not_begun_for_the_ledger_is_its_today(ledger: Ledger, clock: Clock) -> None:
    """Clocks differ: what a gateway reserved at its midnight is no money of tomorrow's."""
    early = an_ask("r1", started_at=NOON_US / 10**6 + DAY_S)
    await ledger.reopen([Held(early, 30)])
    assert await ledger.spends("acme", None) == Spends(clock(), Spend(reserved=30), Spend(reserved=30))


async def test_what_was_reserved_again_and_is_not_renewed_is_an_orphan(ledger: Ledger, clock: Clock) -> None:
    await ledger.reopen([Held(an_ask("r1"), 30)])
    clock.advance(9)
    assert await ledger.reap() == []
    clock.advance(2)
    assert [one.request_id for one in await ledger.reap()] == ["r1"]
    assert (await ledger.spends("acme", None)).day == Spend()


# settlements


async def test_a_settlement_counts_once_whatever_its_repetitions_say(ledger: Ledger) -> None:
    ask = an_ask("r1", Limits(budget_day=1000, requests_per_min=10), prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    first, other = settled(ask, completion_tokens=5), settled(ask, "unserved")
    assert await ledger.settle([first, first, other]) == ["applied", "duplicate", "duplicate"]
    assert await ledger.settle([other, first]) == ["duplicate", "duplicate"]
    gauges_now = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    assert [gauge.remaining for gauge in gauges_now] == [9, 985]
    (row,) = await ledger.usage("acme", "2025-11-30", "2025-11-30")
    assert (row.requests, row.cost) == (1, 15)


async def test_the_same_id_an_hour_later_is_another_request(ledger: Ledger) -> None:
    ask = an_ask("r1", prices=EACH_TOKEN_ONE)
    later = an_ask("r1", prices=EACH_TOKEN_ONE, started_at=ask.started_at + 3600)
    assert await ledger.settle([settled(ask), settled(later)]) == ["applied", "applied"]


async def test_a_settlement_without_a_reservation_is_charged(ledger: Ledger) -> None:
    limits = Limits(budget_day=1000, requests_per_min=10)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE)
    assert await ledger.settle([settled(ask)]) == ["applied"]
    yesterday = an_ask("r0", prices=EACH_TOKEN_ONE, started_at=ask.started_at - DAY_S)
    assert await ledger.settle([settled(yesterday)]) == ["applied"]
    found = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    assert [gauge.remaining for gauge in found] == [10, 970]
    rows = await ledger.usage("acme", "2025-11-29", "2025-11-30")
    assert [(row.day, row.cost) for row in rows] == [("2025-11-29", 30), ("2025-11-30", 30)]


async def test_a_day_that_has_not_begun_yet_is_paid_for_today(ledger: Ledger, clock: Clock) -> None:
    """The clock of who settles is ahead of the ledger's."""
    limits = Limits(budget_day=1000, budget_month=1000)
    ahead = an_ask("r1", prices=EACH_TOKEN_ONE, started_at=an_ask().started_at + DAY_S)
    await ledger.settle([settled(ahead)])
    assert gauges(await granted(ledger, "r2", limits)) == {"budget_day": 970, "budget_month": 970}
    clock.advance(DAY_S)
    assert gauges(await granted(ledger, "r3", limits)) == {"budget_day": 1000, "budget_month": 1000}


async def test_a_reserve_that_arrives_after_its_settlement_is_released(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(budget_day=100, max_concurrency=1)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE)
    assert await ledger.settle([settled(ask, "unserved")]) == ["applied"]
    await ledger.reserve(ask)
    clock.advance(10)
    assert await ledger.reap() == []
    found = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    assert [gauge.remaining for gauge in found] == [1, 100]


async def test_usage_is_told_by_day_model_and_key(ledger: Ledger) -> None:
    day = 86_400.0
    asks = [
        an_ask("r1", key_id="key_2"),
        an_ask("r2", key_id="key_1"),
        an_ask("r3", model="a: b/c"),
        an_ask("r4", key_id="key_1", n=2),
        an_ask("r5", started_at=an_ask().started_at + day),
        an_ask("r6", tenant_id="beta"),
    ]
    await ledger.settle([settled(ask, cached_tokens=3) for ask in asks])
    rows = await ledger.usage("acme", "2025-11-29", "2025-12-02")
    assert [(row.day, row.model, row.key_id, row.requests, row.completion_tokens) for row in rows] == [
        ("2025-11-30", "a: b/c", "key_1", 1, 20),
        ("2025-11-30", "tiny", "key_1", 2, 60),
        ("2025-11-30", "tiny", "key_2", 1, 20),
        ("2025-12-01", "tiny", "key_1", 1, 20),
    ]
    assert await ledger.usage("beta", "2025-11-30", "2025-11-30") == [
        UsageRow(
            day="2025-11-30",
            tenant_id="beta",
            model="tiny",
            key_id="key_1",
            requests=1,
            prompt_tokens=10,
            cached_tokens=3,
            completion_tokens=20,
            cost=0,
        )
    ]
    assert await ledger.usage("acme", "2025-12-02", "2025-11-29") == []


@pytest.mark.parametrize(
    "days", [("2025-11-31", "2025-12-01"), ("x", "2025-12-01"), ("0001-01-01", "9999-12-31")]
)
async def test_days_that_are_none_or_too_many_are_an_error(ledger: Ledger, days: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"day|isoformat|month"):
        await ledger.usage("acme", *days)


# leases

NO_TOKENS = {"prompt_tokens": 0, "completion_tokens": 0}


async def test_a_lease_that_is_renewed_is_not_reaped(ledger: Ledger, clock: Clock) -> None:
    ask = an_ask("r1", Limits(max_concurrency=1))
    await ledger.reserve(ask)
    for _ in range(5):
        clock.advance(9.999999)
        assert await ledger.reap() == []
        await ledger.renew([progress(ask), progress(an_ask("unknown")), progress(an_ask("x", tenant_id="y"))])
    assert (await refused(ledger, "r2", Limits(max_concurrency=1))).kind == "concurrency"


async def test_an_orphan_is_settled_as_far_as_its_last_renewal_told(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(budget_day=1000, input_tokens_per_min=100, output_tokens_per_min=100, max_concurrency=1)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    await ledger.renew([progress(ask, 3, 2), progress(ask, 7, 4)])
    clock.advance(10)
    expected = settled(
        ask, "reaped", cached_tokens=4, completion_tokens=7, ended_at=clock.now_us / 10**6, cost=14
    )
    assert await ledger.reap() == [expected]
    assert await ledger.reap() == []
    found = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    assert [gauge.remaining for gauge in found] == [100, 100, 1, 986]
    (row,) = await ledger.usage("acme", "2025-11-30", "2025-11-30")
    assert (row.requests, row.cached_tokens, row.completion_tokens, row.cost) == (1, 4, 7, 14)


async def test_an_orphan_that_was_never_renewed_costs_nothing(ledger: Ledger, clock: Clock) -> None:
    ask = an_ask("r1", Limits(budget_day=1000, requests_per_min=10), prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    clock.advance(9.999999)
    assert await ledger.reap() == []
    clock.advance(0.000001)
    (settlement,) = await ledger.reap()
    assert (settlement.outcome, settlement.prompt_tokens, settlement.cost) == ("reaped", 0, 0)
    assert await ledger.usage("acme", "2025-11-30", "2025-11-30") == []
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[1].remaining == 1000


async def test_an_orphan_that_only_waited_costs_nothing(ledger: Ledger, clock: Clock) -> None:
    ask = an_ask("r1", Limits(budget_day=1000, input_tokens_per_min=100), prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    await ledger.renew([progress(ask, 0, cached_tokens=4)])
    clock.advance(10)
    assert await ledger.reap() == [settled(ask, "reaped", **NO_TOKENS, ended_at=clock.now_us / 10**6)]
    assert await ledger.usage("acme", "2025-11-30", "2025-11-30") == []
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[-1].remaining == 1000


async def test_the_gateway_s_own_word_corrects_the_reaper_s_once(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(budget_day=1000)
    ask = an_ask("r1", limits, prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    await ledger.renew([progress(ask, 3)])
    clock.advance(10)
    (guess,) = await ledger.reap()
    own = settled(ask, "left", completion_tokens=9)
    assert await ledger.settle([guess, own, guess, own]) == [
        "duplicate",
        "corrected",
        "duplicate",
        "duplicate",
    ]
    (row,) = await ledger.usage("acme", "2025-11-30", "2025-11-30")
    assert (row.requests, row.prompt_tokens, row.completion_tokens, row.cost) == (1, 10, 9, 19)
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[0].remaining == 981


async def test_a_correction_to_nothing_gives_everything_back(ledger: Ledger, clock: Clock) -> None:
    ask = an_ask("r1", Limits(budget_day=1000), prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    await ledger.renew([progress(ask, 3)])
    clock.advance(10)
    await ledger.reap()
    assert await ledger.settle([settled(ask, "unserved")]) == ["corrected"]
    rows = await ledger.usage("acme", "2025-11-30", "2025-11-30")
    assert [(row.requests, row.cost) for row in rows] in ([], [(0, 0)])
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[0].remaining == 1000


async def test_the_reaper_finds_the_orphans_of_all_tenants(ledger: Ledger, clock: Clock) -> None:
    asks = [an_ask(f"r{number}", tenant_id=f"t{number % 7}") for number in range(50)]
    for ask in asks:
        await ledger.reserve(ask)
    clock.advance(5)
    await ledger.renew([progress(ask) for ask in asks[::2]])
    clock.advance(5)
    assert {one.request_id for one in await ledger.reap()} == {ask.request_id for ask in asks[1::2]}
    clock.advance(5)
    assert {one.request_id for one in await ledger.reap()} == {ask.request_id for ask in asks[::2]}


async def test_a_purse_is_no_request_and_is_held_long_once_renewed(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(budget_day=1000)
    purse = an_ask("purse", limits, prices=EACH_TOKEN_ONE, prompt_tokens=99, max_tokens=1, is_purse=True)
    await ledger.reserve(purse)
    await granted(ledger, "r1", Limits(max_concurrency=1))
    await ledger.renew([progress(purse)])
    clock.advance(899.999999)
    assert [one.request_id for one in await ledger.reap()] == ["r1"]
    standing = await ledger.standing("acme", "tiny", purse.scopes)
    assert [gauge.remaining for gauge in standing.gauges] == [900]
    clock.advance(0.000001)
    (settlement,) = await ledger.reap()
    assert (settlement.request_id, settlement.cost, settlement.prompt_tokens) == ("purse", 0, 0)
    standing = await ledger.standing("acme", "tiny", purse.scopes)
    assert [gauge.remaining for gauge in standing.gauges] == [1000]


# changes in the middle


async def test_a_rate_that_is_changed_keeps_what_was_taken(ledger: Ledger, clock: Clock) -> None:
    slow, fast = Limits(requests_per_min=4), Limits(requests_per_min=60)
    for number in range(4):
        await granted(ledger, f"r{number}", slow)
    assert (await refused(ledger, "late", slow)).retry_after_s == 15.0
    assert gauges(await granted(ledger, "r4", fast)) == {"requests": 55}
    answer = await refused(ledger, "late", slow)
    assert answer.retry_after_s == 30.0  # five are taken, and one more has to fit into four
    clock.advance(30)
    await granted(ledger, "late", slow)


async def test_a_level_is_touched_by_takes_of_its_own_only(ledger: Ledger, clock: Clock) -> None:
    """A minute drains at the rate that the next request finds, whatever was taken of others meanwhile."""
    slow, fast = Limits(requests_per_min=1, burst_s=180), Limits(requests_per_min=3)
    await granted(ledger, "r1", slow)
    await granted(ledger, "r2", slow)
    clock.advance(30)
    other = an_ask("r3", Limits(output_tokens_per_min=600))
    await ledger.reserve(other)
    await ledger.settle([settled(other)])
    clock.advance(10)
    assert gauges(await granted(ledger, "r4", fast), "reset_s") == {"requests": 20.0}  # 2 drained in 40 s


async def test_a_refusal_at_a_new_rate_tells_the_truth(ledger: Ledger, clock: Clock) -> None:
    slow, fast = Limits(requests_per_min=1), Limits(requests_per_min=60, burst_s=1)
    await granted(ledger, "r1", slow)
    assert (await refused(ledger, "r2", fast)).retry_after_s == 1.0
    clock.advance(1)
    await granted(ledger, "r2", fast)


async def test_a_clock_that_is_set_back_lets_nobody_wait_longer(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(requests_per_min=1)
    await granted(ledger, "r1", limits)
    clock.now_us = NOON_US - 3600 * 10**6
    await ledger.settle([settled(an_ask("r1"))])
    assert (await refused(ledger, "r2", limits)).retry_after_s == 60.0
    clock.advance(60)
    await granted(ledger, "r2", limits)
