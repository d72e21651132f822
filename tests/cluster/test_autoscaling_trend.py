"""A steady rise: seen as soon as noise lets it, and told apart from noise and from a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.autoscaling.trend import BLOCK_S, LEAST_BLOCKS, Rise, Sample, Trend, rise_of
from tests.cluster.scaling_world import noisy

QUIET_S = 60


def blocks(*values: float) -> list[Sample]:
    return [Sample(BLOCK_S * number, value) for number, value in enumerate(values)]


def seen_at(load: Callable[[int], float], seconds: int) -> Iterator[int]:
    """The seconds at which a rise is seen."""
    trend = Trend()
    for now in range(seconds):
        trend.observe(Sample(float(now), load(now)))
        if trend.rise is not None:
            yield now


class TestRise:
    def test_is_the_level_before_the_slope_and_since_when(self) -> None:
        rise = rise_of(blocks(*[100.0] * 10, *(100.0 + 10 * number for number in range(1, 11))))
        assert rise is not None
        assert rise.since == 9 * BLOCK_S
        assert (rise.level, rise.slope) == (pytest.approx(100.0), pytest.approx(10 / BLOCK_S))

    def test_goes_on_for_as_long_again_as_it_has_lasted(self) -> None:
        rise = Rise(level=100.0, slope=2.0, since=1000.0)
        assert rise.expected(now=1030.0, ahead_s=20.0) == 200.0
        assert rise.expected(now=1030.0, ahead_s=30.0) == 220.0
        assert rise.expected(now=1030.0, ahead_s=300.0) == 220.0

    def test_that_lasts_for_all_that_is_remembered_goes_on_until_it_has_doubled(self) -> None:
        rise = Rise(level=100.0, slope=2.0, since=1000.0)
        assert rise.expected(now=1110.0, ahead_s=150.0) == 620.0
        assert rise.expected(now=1110.0, ahead_s=9000.0) == 640.0

    def test_is_not_seen_in_the_first_minute(self) -> None:
        rising = [10.0 * number for number in range(LEAST_BLOCKS)]
        assert rise_of(blocks(*rising[:-1])) is None
        assert rise_of(blocks(*rising)) is not None

    def test_of_a_quarter_of_a_minute_is_none(self) -> None:
        for rising in ([150.0], [150.0, 200.0], [150.0, 200.0, 250.0]):
            assert rise_of(blocks(*[100.0] * 19, *rising)) is None

    def test_is_no_fall(self) -> None:
        assert rise_of(blocks(*[500.0] * 10, *(500.0 - 10 * number for number in range(1, 11)))) is None

    def test_that_is_over_is_none_before_all_of_it_is_forgotten(self) -> None:
        seen = list(seen_at(lambda t: 100.0 + 2 * min(t, 200), 400))
        assert (seen[0], seen[-1]) == (60, 249)

    def test_is_not_made_up_of_what_was_before_a_gap(self) -> None:
        trend = Trend()
        for now in range(200):
            trend.observe(Sample(float(now), 100.0 + 2 * now))
        assert trend.rise is not None
        trend.observe(Sample(600.0, 500.0))
        trend.observe(Sample(606.0, 500.0))
        assert trend.rise is None


class TestStep:
    @pytest.mark.parametrize("at", range(100, 110))
    def test_wherever_in_a_block_it_comes_it_is_no_rise(self, at: int) -> None:
        assert list(seen_at(lambda t: 300.0 if t < at else 800.0, 300)) == []

    def test_nor_are_two(self) -> None:
        assert list(seen_at(lambda t: 300.0 + 200 * (t >= 150) - 300 * (t >= 190), 400)) == []

    def test_in_noise_is_hardly_ever_taken_for_one(self) -> None:
        """Three requests a second at each of three replicas, and then at five."""
        misread = 0
        for seed in range(20):
            rng = Random(seed)
            load = [noisy(3000.0 if t < 200 else 5000.0, 300, rng) for t in range(400)]
            misread += any(seen_at(load.__getitem__, 400))
        assert misread <= 2


class TestNoise:
    def test_alone_is_no_rise(self) -> None:
        rng = Random(1)
        load = [noisy(3000.0, 300, rng) for _ in range(7200)]
        assert list(seen_at(load.__getitem__, 7200)) == []

    def test_hides_one_for_three_quarters_of_a_minute(self) -> None:
        """Ten requests a second, and as many more each half minute."""
        after = []
        for seed in range(20):
            rng = Random(seed)
            load = [noisy(1000 + 33 * max(0, t - QUIET_S), 100, rng) for t in range(200)]
            after.append(next(seen_at(load.__getitem__, 200)) - QUIET_S)
        assert (min(after), median(after), max(after)) == (20, 45, 90)


values = st.lists(st.integers(0, 10_000), min_size=LEAST_BLOCKS, max_size=24)


@given(values, st.sampled_from([0.25, 4.0, 1024.0]))
def test_in_whatever_unit_the_load_is_told_it_rises_or_not(told: list[int], unit: float) -> None:
    rise, in_units = rise_of(blocks(*told)), rise_of(blocks(*(unit * value for value in told)))
    assert in_units == (rise and Rise(unit * rise.level, unit * rise.slope, rise.since))


@given(st.integers(1, 23), st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0, 1))
def test_one_step_anywhere_is_no_rise(at: int, before: int, after: int, part: float) -> None:
    between = before + part * (after - before)
    assert rise_of(blocks(*[before] * (at - 1), between, *[after] * (24 - at))) is None
