"""What runs, what is reserved again, and what nobody renews: one specification, run on memory and Redis."""

from __future__ import annotations

from tenants.ledger.ledger import Ledger
from tenants.ledger.reservation import Held
from tenants.ledger.state import Spend, Spends
from tenants.terms import Limits
from tests.tenants.ledger.asking import CACHED_A_TENTH, granted, refused
from tests.tenants.ledger.builders import (
    NOON_US,
    Clock,
    an_ask,
    progress,
    settled,
)

DAY_S = 86_400

NO_TOKENS = {"prompt_tokens": 0, "completion_tokens": 0}


async def test_what_runs_is_reserved_again_once_and_settled_as_ever(ledger: Ledger) -> None:
    limits = Limits(budget_day=100, max_concurrency=1, requests_per_min=5)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH)
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
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH)
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
    ask = an_ask("r1", Limits(budget_day=1000, requests_per_min=10), prices=CACHED_A_TENTH)
    await ledger.reserve(ask)
    clock.advance(9.999999)
    assert await ledger.reap() == []
    clock.advance(0.000001)
    (settlement,) = await ledger.reap()
    assert (settlement.outcome, settlement.prompt_tokens, settlement.cost) == ("reaped", 0, 0)
    assert await ledger.usage("acme", "2025-11-30", "2025-11-30") == []
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[1].remaining == 1000


async def test_an_orphan_that_only_waited_costs_nothing(ledger: Ledger, clock: Clock) -> None:
    ask = an_ask("r1", Limits(budget_day=1000, input_tokens_per_min=100), prices=CACHED_A_TENTH)
    await ledger.reserve(ask)
    await ledger.renew([progress(ask, 0, cached_tokens=4)])
    clock.advance(10)
    assert await ledger.reap() == [settled(ask, "reaped", **NO_TOKENS, ended_at=clock.now_us / 10**6)]
    assert await ledger.usage("acme", "2025-11-30", "2025-11-30") == []
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[-1].remaining == 1000


async def test_the_gateway_s_own_word_corrects_the_reaper_s_once(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(budget_day=1000)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH)
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
    ask = an_ask("r1", Limits(budget_day=1000), prices=CACHED_A_TENTH)
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
    purse = an_ask("purse", limits, prices=CACHED_A_TENTH, prompt_tokens=99, max_tokens=1, is_purse=True)
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
