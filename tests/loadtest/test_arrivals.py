"""Poisson arrivals: known beforehand, the same for the same seed, of the rate that was asked."""

from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.arrivals import poisson_arrivals


def test_a_schedule_stays_the_same_for_ever() -> None:
    assert [round(at, 6) for at in poisson_arrivals(2.0, 0, num_requests=3)] == [0.245192, 0.940982, 2.578211]


@settings(max_examples=40)
@given(st.floats(0.1, 1000), st.integers(), st.integers(1, 200))
def test_times_ascend_and_a_longer_schedule_begins_like_a_shorter_one(
    rate: float, seed: int, count: int
) -> None:
    times = poisson_arrivals(rate, seed, num_requests=count)
    assert len(times) == count
    assert list(times) == sorted(times)
    assert poisson_arrivals(rate, seed, num_requests=count + 1)[:count] == times
    assert poisson_arrivals(rate, seed, duration_s=times[-1]) == times[:-1]


def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_chance() -> None:
    times = (0.0, *poisson_arrivals(50.0, 3, num_requests=20_000))
    gaps = [late - early for early, late in pairwise(times)]
    assert fmean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.0, rel=0.03)


def test_the_same_load_at_another_rate_has_the_same_shape() -> None:
    slow, fast = (poisson_arrivals(rate, 1, num_requests=9) for rate in (1.0, 4.0))
    assert [4 * at for at in fast] == pytest.approx(list(slow))


@pytest.mark.parametrize("bounds", [{}, {"num_requests": 1, "duration_s": 1.0}])
def test_exactly_one_end_must_be_told(bounds: dict) -> None:
    with pytest.raises(ValueError, match="exactly one of num_requests and duration_s"):
        poisson_arrivals(1.0, 0, **bounds)
