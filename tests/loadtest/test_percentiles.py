"""Percentiles by nearest rank: exact on small samples, and always a measured value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.percentiles import percentile, percentiles

FLOATS = st.floats(allow_nan=False)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([15, 20, 35, 40, 50], 5, 15),
        ([15, 20, 35, 40, 50], 30, 20),
        ([15, 20, 35, 40, 50], 40, 20),
        ([15, 20, 35, 40, 50], 50, 35),
        ([15, 20, 35, 40, 50], 100, 50),
        ([3, 1, 2], 99, 3),
        (range(1, 101), 99, 99),
        (range(1, 101), 7, 7),
        (range(1, 1001), 99.9, 999),
        ([], 50, None),
    ],
)
def test_nearest_rank(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize("percent", [0, -1, 100.1, float("nan")])
def test_no_percentile_outside_its_range(percent: float) -> None:
    with pytest.raises(ValueError, match="percent must be above 0 and at most 100"):
        percentile([1.0], percent)


@given(st.lists(FLOATS, min_size=1), st.integers(1, 100))
def test_enough_values_are_below_and_it_is_the_smallest_such(values: list[float], percent: int) -> None:
    result = percentile(values, percent)
    assert result in values
    assert 100 * sum(value <= result for value in values) >= percent * len(values)
    assert 100 * sum(value < result for value in values) < percent * len(values)


@given(st.lists(FLOATS), st.lists(st.integers(1, 100)))
def test_several_at_once_are_the_same_and_the_values_stay(values: list[float], percents: list[int]) -> None:
    before = list(values)
    assert percentiles(values, percents) == [percentile(values, percent) for percent in percents]
    assert values == before
