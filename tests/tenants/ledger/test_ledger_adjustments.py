"""Top-ups and resets of a budget: one specification, run on memory and Redis."""

from __future__ import annotations

import pytest

from tenants.ledger.ledger import Ledger
from tenants.ledger.state import Spend, Spends
from tenants.terms import Limits
from tests.tenants.ledger.asking import CACHED_A_TENTH, granted
from tests.tenants.ledger.builders import (
    Clock,
    a_reset,
    a_top_up,
    an_ask,
    settled,
)

DAY_S = 86_400


async def test_a_top_up_and_a_reset_touch_one_window(ledger: Ledger) -> None:
    limits = Limits(budget_day=30, budget_month=100)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH)
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
    spender = an_ask("r1", limits, prices=CACHED_A_TENTH, prompt_tokens=304)
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
    await ledger.settle([settled(an_ask("r2", prices=CACHED_A_TENTH))])
    assert await budget() == (2_970, 3_000, DAY_S / 2)


async def test_a_reset_leaves_what_runs_reserved(ledger: Ledger) -> None:
    limits = Limits(budget_day=100)
    await granted(ledger, "r1", limits, prices=CACHED_A_TENTH)
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
    whole = await granted(ledger, "r9", limits, prices=CACHED_A_TENTH, max_tokens=500)
    assert whole.max_tokens == 90, "what was forgiven and is not known to be spent is no money"
    await ledger.settle([settled(an_ask("r9"), "unserved")])
    for number, remaining in enumerate((100, 100, 70)):
        await ledger.settle([settled(an_ask(f"r{number}", prices=CACHED_A_TENTH))])
        assert (await ledger.standing("acme", "tiny", scopes)).gauges[0].remaining == remaining
