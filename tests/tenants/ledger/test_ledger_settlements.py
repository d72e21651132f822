"""What a settlement makes of a reservation: one specification, run on memory and Redis."""

from __future__ import annotations

import pytest

from tenants.ledger.grant import Granted
from tenants.ledger.ledger import Ledger
from tenants.ledger.usage import UsageRow
from tenants.terms import Limits
from tests.tenants.ledger.asking import CACHED_A_TENTH, gauges, granted
from tests.tenants.ledger.builders import (
    Clock,
    an_ask,
    settled,
)

DAY_S = 86_400


async def test_cached_prompt_tokens_are_given_back_and_cost_less(ledger: Ledger) -> None:
    limits = Limits(input_tokens_per_min=1000, budget_day=1000)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH, prompt_tokens=100)
    await granted(ledger, "r1", limits, prices=CACHED_A_TENTH, prompt_tokens=100)
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
        ask = an_ask(f"r{number}", limits, prices=CACHED_A_TENTH)
        assert isinstance(await ledger.reserve(ask), Granted)
        assert await ledger.settle([settled(ask, "unserved")]) == ["applied"]
    assert await ledger.usage("acme", "2025-11-30", "2025-11-30") == []


async def test_a_failure_of_ours_is_told_and_free(ledger: Ledger) -> None:
    ask = an_ask("r1", Limits(budget_day=30), prices=CACHED_A_TENTH)
    await ledger.reserve(ask)
    await ledger.settle([settled(ask, "failed", completion_tokens=3)])
    (row,) = await ledger.usage("acme", "2025-11-30", "2025-11-30")
    assert (row.requests, row.completion_tokens, row.cost) == (1, 3, 0)
    assert (await ledger.standing("acme", "tiny", ask.scopes)).gauges[0].remaining == 30


async def test_a_settlement_counts_once_whatever_its_repetitions_say(ledger: Ledger) -> None:
    ask = an_ask("r1", Limits(budget_day=1000, requests_per_min=10), prices=CACHED_A_TENTH)
    await ledger.reserve(ask)
    first, other = settled(ask, completion_tokens=5), settled(ask, "unserved")
    assert await ledger.settle([first, first, other]) == ["applied", "duplicate", "duplicate"]
    assert await ledger.settle([other, first]) == ["duplicate", "duplicate"]
    gauges_now = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    assert [gauge.remaining for gauge in gauges_now] == [9, 985]
    (row,) = await ledger.usage("acme", "2025-11-30", "2025-11-30")
    assert (row.requests, row.cost) == (1, 15)


async def test_the_same_id_an_hour_later_is_another_request(ledger: Ledger) -> None:
    ask = an_ask("r1", prices=CACHED_A_TENTH)
    later = an_ask("r1", prices=CACHED_A_TENTH, started_at=ask.started_at + 3600)
    assert await ledger.settle([settled(ask), settled(later)]) == ["applied", "applied"]


async def test_a_settlement_without_a_reservation_is_charged(ledger: Ledger) -> None:
    limits = Limits(budget_day=1000, requests_per_min=10)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH)
    assert await ledger.settle([settled(ask)]) == ["applied"]
    yesterday = an_ask("r0", prices=CACHED_A_TENTH, started_at=ask.started_at - DAY_S)
    assert await ledger.settle([settled(yesterday)]) == ["applied"]
    found = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    assert [gauge.remaining for gauge in found] == [10, 970]
    rows = await ledger.usage("acme", "2025-11-29", "2025-11-30")
    assert [(row.day, row.cost) for row in rows] == [("2025-11-29", 30), ("2025-11-30", 30)]


async def test_a_day_that_has_not_begun_yet_is_paid_for_today(ledger: Ledger, clock: Clock) -> None:
    """The clock of who settles is ahead of the ledger's."""
    limits = Limits(budget_day=1000, budget_month=1000)
    ahead = an_ask("r1", prices=CACHED_A_TENTH, started_at=an_ask().started_at + DAY_S)
    await ledger.settle([settled(ahead)])
    assert gauges(await granted(ledger, "r2", limits)) == {"budget_day": 970, "budget_month": 970}
    clock.advance(DAY_S)
    assert gauges(await granted(ledger, "r3", limits)) == {"budget_day": 1000, "budget_month": 1000}


async def test_a_reserve_that_arrives_after_its_settlement_is_released(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(budget_day=100, max_concurrency=1)
    ask = an_ask("r1", limits, prices=CACHED_A_TENTH)
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
