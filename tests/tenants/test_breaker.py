"""The breaker: one failure costs at most one wait, and only the background finds out that it is over."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.breaker import MAX_CALL_S, PROBE_EVERY_S, Breaker
from tenants.record_health import GuardedKeys, RecordHealth
from tenants.store import CorruptRecord, StoreUnavailable, Trouble
from tests.builders_tenants import FakeClock

TROUBLES: tuple[Trouble, ...] = ("unreachable", "timeout", "refused", "empty")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestBreaker:
    def test_is_closed_at_first(self) -> None:
        breaker = Breaker()
        assert (breaker.trouble, breaker.since) == (None, -math.inf)

    @pytest.mark.parametrize("trouble", TROUBLES)
    def test_opens_at_the_first_failure_and_knows_why_and_since_when(self, trouble: Trouble) -> None:
        breaker = Breaker()
        breaker.failed(trouble, 7.0)
        assert (breaker.trouble, breaker.since) == (trouble, 7.0)

    def test_closes_at_a_success(self) -> None:
        breaker = Breaker()
        breaker.failed("timeout", 7.0)
        breaker.succeeded(8.0)
        assert (breaker.trouble, breaker.since) == (None, 8.0)

    def test_a_call_asked_before_it_opened_does_not_close_it(self) -> None:
        breaker = Breaker()
        breaker.failed("timeout", 7.0)
        breaker.succeeded(7.0 + MAX_CALL_S)
        assert breaker.trouble == "timeout"

    def test_a_call_asked_before_it_closed_does_not_open_it(self) -> None:
        breaker = Breaker()
        breaker.failed("timeout", 7.0)
        breaker.succeeded(8.0)
        breaker.failed("timeout", 8.0 + MAX_CALL_S)
        assert breaker.trouble is None
        breaker.failed("timeout", 8.0 + MAX_CALL_S + 0.001)
        assert breaker.trouble == "timeout"

    def test_more_failures_tell_the_trouble_but_not_a_new_beginning(self) -> None:
        breaker = Breaker()
        for at, trouble in enumerate(TROUBLES):
            breaker.failed(trouble, float(at))
        assert (breaker.trouble, breaker.since) == ("empty", 0.0)

    def test_tells_each_change_once(self) -> None:
        told: list[Trouble | None] = []
        breaker = Breaker(told.append)
        breaker.succeeded(1.0)
        breaker.failed("timeout", 2.0)
        breaker.failed("timeout", 2.5)
        breaker.failed("empty", 3.0)
        breaker.succeeded(4.0)
        breaker.succeeded(5.0)
        assert told == ["timeout", "empty", None]

    def test_a_probe_is_never_taken_for_a_call_from_before_the_last(self) -> None:
        assert PROBE_EVERY_S > MAX_CALL_S

    @given(st.lists(st.tuples(st.floats(0.01, 1.0), st.sampled_from([*TROUBLES, None])), max_size=50))
    def test_is_what_the_last_news_said(self, history: list[tuple[float, Trouble | None]]) -> None:
        """The oracle keeps the whole history: a turn counts unless it comes within a call of the last one."""
        breaker, now, turns = Breaker(), 0.0, [(-math.inf, False)]
        for pause, trouble in history:
            now += pause
            is_open = trouble is not None
            if trouble is None:
                breaker.succeeded(now)
            else:
                breaker.failed(trouble, now)
            if is_open != turns[-1][1] and now - turns[-1][0] > MAX_CALL_S:
                turns.append((now, is_open))
            assert ((breaker.trouble is not None), breaker.since) == (turns[-1][1], turns[-1][0])


class Record:
    """A record that costs `wait_s` of the clock a call, and fails while there is `trouble`."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.trouble: Trouble | None = None
        self.wait_s = 0.0
        self.num_calls = 0

    async def call(self) -> str:
        self.num_calls += 1
        self._clock.advance(self.wait_s)
        if self.trouble is not None:
            raise StoreUnavailable("away", self.trouble)
        return "here"


class TestRecordHealth:
    async def test_gives_back_what_the_call_returns(self, clock: FakeClock) -> None:
        health = RecordHealth(Breaker(), clock)
        assert await health.ask(Record(clock).call) == "here"
        assert health.trouble is None

    async def test_of_a_thousand_calls_to_a_frozen_record_one_waits(self, clock: FakeClock) -> None:
        health, record = RecordHealth(Breaker(), clock), Record(clock)
        record.trouble, record.wait_s, began = "timeout", MAX_CALL_S, clock.now
        for _ in range(1000):
            with pytest.raises(StoreUnavailable) as caught:
                await health.ask(record.call)
            assert caught.value.trouble == "timeout"
        assert (record.num_calls, clock.now - began) == (1, MAX_CALL_S)

    async def test_asks_again_after_a_probe_said_so(self, clock: FakeClock) -> None:
        breaker, record = Breaker(), Record(clock)
        health = RecordHealth(breaker, clock)
        health.failed("refused")
        clock.advance(PROBE_EVERY_S)
        breaker.succeeded(clock())
        assert await health.ask(record.call) == "here"

    async def test_a_corrupt_value_is_its_tenant_s_trouble_alone(self, clock: FakeClock) -> None:
        async def call() -> str:
            raise CorruptRecord("junk")

        health = RecordHealth(Breaker(), clock)
        with pytest.raises(CorruptRecord):
            await health.ask(call)
        assert health.trouble is None

    async def test_another_error_is_not_the_record_s(self, clock: FakeClock) -> None:
        async def call() -> str:
            raise KeyError

        health = RecordHealth(Breaker(), clock)
        with pytest.raises(KeyError):
            await health.ask(call)
        assert health.trouble is None

    async def test_a_key_is_not_looked_up_while_it_is_open(self, clock: FakeClock) -> None:
        class Store:
            async def find_key(self, key_hash: str) -> None:
                raise AssertionError(key_hash)

        health = RecordHealth(Breaker(), clock)
        health.failed("timeout")
        with pytest.raises(StoreUnavailable):
            await GuardedKeys(Store(), health).find_key("00")
