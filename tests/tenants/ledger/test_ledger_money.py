"""What a ledger knows of budgets and costs: one specification, run on memory and Redis."""

from __future__ import annotations

import pytest

from tenants.ledger.ask import Scope
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.ledger import Ledger
from tenants.terms import Limits, Prices
from tests.tenants.ledger.asking import CACHED_A_TENTH, gauges, granted, refused
from tests.tenants.ledger.builders import (
    Clock,
    an_ask,
    settled,
)

DAY_S = 86_400


async def test_a_budget_reserves_the_whole_answer_and_gives_back_what_was_not_made(ledger: Ledger) -> None:
    limits = Limits(budget_day=100)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH, max_tokens=90)
    answer = await ledger.reserve(ask)
    assert isinstance(answer, Granted)
    assert (answer.max_tokens, answer.reserved_cost, gauges(answer)) == (90, 100, {"budget_day": 0})
    assert (await refused(ledger, "r2", limits, prices=CACHED_A_TENTH)).kind == "budget_day"
    await ledger.settle([settled(ask, completion_tokens=40)])
    assert (await granted(ledger, "r2", limits, prices=CACHED_A_TENTH)).reserved_cost == 30


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
    ask = an_ask("r1", Limits(budget_month=budget), prices=CACHED_A_TENTH, max_tokens=asked, n=n)
    answer = await ledger.reserve(ask)
    if given is not None:
        assert isinstance(answer, Granted)
        assert (answer.max_tokens, answer.reserved_cost) == (given, 10 + n * given)
    else:
        assert isinstance(answer, Refused)
        assert (answer.kind, answer.retry_after_s, answer.is_never) == ("budget_month", None, False)


async def test_the_tightest_of_all_budgets_decides(ledger: Ledger) -> None:
    of_tenant, of_key = Limits(budget_day=1000, budget_month=28), Limits(budget_day=27, budget_month=1000)
    answer = await granted(ledger, "r1", of_tenant, key_limits=of_key, prices=CACHED_A_TENTH)
    assert answer.max_tokens == 17
    answer = await refused(ledger, "r2", of_tenant, key_limits=of_key, prices=CACHED_A_TENTH)
    assert (answer.kind, answer.key_id) == ("budget_month", None)  # both pay for nothing; the first is named


async def test_a_budget_is_named_before_a_rate_and_a_rate_by_its_wait(ledger: Ledger) -> None:
    limits = Limits(requests_per_min=1, input_tokens_per_min=10, max_concurrency=1, budget_day=30)
    await granted(ledger, "r1", limits, prices=CACHED_A_TENTH)
    assert (await refused(ledger, "r2", limits, prices=CACHED_A_TENTH)).kind == "budget_day"
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
    await granted(ledger, "r1", day, prices=CACHED_A_TENTH)
    clock.advance(12 * 3600 - 0.000001)
    answer = await refused(ledger, "r2", day, prices=CACHED_A_TENTH)
    assert gauges(answer, "reset_s") == {"budget_day": 0.000001}
    clock.advance(0.000001)
    answer = await granted(ledger, "r2", Limits(budget_day=30, budget_month=30), prices=CACHED_A_TENTH)
    assert gauges(answer, "reset_s") == {"budget_day": DAY_S, "budget_month": 31 * DAY_S}  # it is December
    await granted(ledger, "r3", month, prices=CACHED_A_TENTH)
    await refused(ledger, "r4", month, prices=CACHED_A_TENTH)


async def test_a_request_is_charged_to_the_windows_that_it_began_in(ledger: Ledger, clock: Clock) -> None:
    clock.advance(12 * 3600 - 1)
    limits = Limits(budget_day=1000, budget_month=1000)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH, started_at=clock.now_us / 10**6)
    await ledger.reserve(ask)
    clock.advance(2)
    await ledger.settle([settled(ask)])
    assert gauges(await granted(ledger, "r2", limits)) == {"budget_day": 1000, "budget_month": 1000}
    (row,) = await ledger.usage("acme", "2025-11-01", "2025-12-31")
    assert (row.day, row.cost) == ("2025-11-30", 30)


async def test_without_a_budget_spend_is_counted_all_the_same(ledger: Ledger) -> None:
    ask = an_ask("r1", prices=CACHED_A_TENTH)
    await ledger.reserve(ask)
    await ledger.settle([settled(ask)])
    await ledger.reserve(an_ask("r2", prices=CACHED_A_TENTH))
    answer = await granted(ledger, "r3", Limits(budget_day=100), key_limits=Limits(budget_month=80))
    assert gauges(answer) == {"budget_day": 40, "budget_month": 20}
