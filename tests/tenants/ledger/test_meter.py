"""The arithmetic of a rate: exact, and the same as the theoretical arrival time of the textbook."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tenants.ledger.meter import MAX_BURST, MAX_LEVEL, UNIT, Meter, changed, meters
from tenants.terms import MAX_BURST_S, MAX_PER_MIN, Limits

RATES = st.integers(1, MAX_PER_MIN)
LEVELS = st.integers(0, MAX_LEVEL)
SPANS = st.integers(0, 10**13)


def test_every_number_is_below_2_to_the_53() -> None:
    assert MAX_BURST * UNIT < MAX_LEVEL < 2**53
    assert changed(MAX_LEVEL, 10**12) == MAX_LEVEL
    assert changed(MAX_LEVEL, -(10**12)) == 0


def test_a_burst_is_so_many_seconds_of_the_rate_at_least_one_token() -> None:
    def burst(per_min: int, burst_s: int) -> int:
        meter, *_ = meters(Limits(requests_per_min=per_min, burst_s=burst_s))
        assert meter is not None
        return meter.burst

    assert (burst(60, 60), burst(100, 30), burst(59, 1), burst(1, 1)) == (60, 50, 1, 1)
    assert burst(MAX_PER_MIN, MAX_BURST_S) == MAX_BURST
    assert meters(Limits()) == (None, None, None)


@given(RATES, LEVELS, SPANS)
def test_a_level_drains_by_the_rate_and_no_further_than_empty(per_min: int, level: int, span: int) -> None:
    left = Meter(per_min, 1).level_after(level, span)
    assert Fraction(left, UNIT) == max(0, Fraction(level, UNIT) - Fraction(per_min * span, 60 * 10**6))
    assert Meter(per_min, 1).level_after(level, -span) == level


@given(RATES, LEVELS, st.integers(1, MAX_BURST), st.data())
def test_a_wait_is_the_shortest_after_which_there_is_room(
    per_min: int, level: int, burst: int, data: st.DataObject
) -> None:
    meter = Meter(per_min, burst)
    tokens = data.draw(st.integers(0, burst))
    wait = meter.wait_us(level, tokens)
    assert (wait == 0) == meter.has_room(level, tokens)
    assert meter.has_room(meter.level_after(level, wait), tokens)
    assert wait == 0 or not meter.has_room(meter.level_after(level, wait - 1), tokens)


@given(RATES, LEVELS, st.integers(1, MAX_BURST))
def test_remaining_is_the_most_that_has_room_and_reset_when_all_has(
    per_min: int, level: int, burst: int
) -> None:
    meter = Meter(per_min, burst)
    remaining, reset = meter.remaining(level), meter.reset_us(level)
    assert remaining == 0 or meter.has_room(level, remaining)
    assert not meter.has_room(level, remaining + 1)
    assert meter.level_after(level, reset) == 0
    assert reset == 0 or meter.level_after(level, reset - 1) > 0


@given(RATES, st.integers(1, 10**6), st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**6))))
def test_it_admits_what_the_theoretical_arrival_time_admits(
    per_min: int, burst: int, asks: list[tuple[int, int]]
) -> None:
    """GCRA as virtual scheduling: a token costs `interval`; the arrival time may run ahead by the burst."""
    meter, level, then = Meter(per_min, burst), 0, 0
    interval, arrival, now = Fraction(60 * 10**6, per_min), Fraction(0), 0
    for gap, tokens in asks:
        now += gap
        level, then = meter.level_after(level, now - then), now
        next_arrival = max(Fraction(now), arrival) + tokens * interval
        admits = next_arrival - now <= burst * interval
        assert meter.has_room(level, tokens) == admits
        if admits:
            level, arrival = changed(level, tokens), next_arrival


@given(LEVELS, st.integers(-(10**9), 10**9))
def test_a_correction_never_makes_a_level_negative(level: int, tokens: int) -> None:
    after = changed(level, tokens)
    assert 0 <= after <= MAX_LEVEL
    if 0 < after < MAX_LEVEL:
        assert after - level == tokens * UNIT
