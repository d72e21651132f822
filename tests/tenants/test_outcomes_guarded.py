"""Outcomes behind the breaker: nobody waits for a Redis that is in trouble."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tenants.breaker import Breaker
from tenants.outcomes.guarded_outcomes import GuardedOutcomes
from tenants.outcomes.memory_outcomes import MemoryOutcomes
from tenants.outcomes.outcome import Begun, Finished, OutcomeStore
from tenants.record_health import RecordHealth
from tenants.store import StoreUnavailable
from tests.builders_tenants import FakeClock
from tests.tenants.outcome_stores import a_mark

MARK = a_mark()
CALLS: dict[str, Callable[[OutcomeStore], Awaitable[object]]] = {
    "begin": lambda outcomes: outcomes.begin(MARK, "a"),
    "renew": lambda outcomes: outcomes.renew(MARK, "a"),
    "finish": lambda outcomes: outcomes.finish(MARK, "a", b"sealed"),
    "fail": lambda outcomes: outcomes.fail(MARK, "a"),
}


async def test_while_all_is_well_it_is_the_store() -> None:
    clock = FakeClock()
    outcomes = GuardedOutcomes(MemoryOutcomes(clock), RecordHealth(Breaker(), clock))
    assert await outcomes.begin(MARK, "a") == Begun()
    assert await outcomes.renew(MARK, "a")
    assert await outcomes.finish(MARK, "a", b"sealed")
    assert not await outcomes.fail(MARK, "a")
    assert await outcomes.begin(MARK, "b") == Finished(b"sealed")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_in_trouble_it_is_not_asked(call: Callable[[OutcomeStore], Awaitable[object]]) -> None:
    clock = FakeClock()
    health = RecordHealth(Breaker(), clock)
    store = MemoryOutcomes(clock)
    health.failed("timeout")
    with pytest.raises(StoreUnavailable) as caught:
        await call(GuardedOutcomes(store, health))
    assert caught.value.trouble == "timeout"
    assert await store.begin(MARK, "b") == Begun()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_its_failures_are_the_record_s(call: Callable[[OutcomeStore], Awaitable[object]]) -> None:
    class Away(MemoryOutcomes):
        async def begin(self, *args: object) -> object:
            raise StoreUnavailable("away", "unreachable")

        renew = finish = fail = begin

    clock = FakeClock()
    health = RecordHealth(Breaker(), clock)
    with pytest.raises(StoreUnavailable):
        await call(GuardedOutcomes(Away(clock), health))
    assert health.trouble == "unreachable"
