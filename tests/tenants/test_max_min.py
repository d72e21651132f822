"""Max-min fair shares: one level for all that are not full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.max_min import max_min_shares


def test_what_one_leaves_goes_to_the_others_by_weight() -> None:
    shares = max_min_shares(
        100, {"heavy": 90, "light": 90, "modest": 10}, {"heavy": 4, "light": 1, "modest": 1}
    )
    assert shares == {"modest": 10, "heavy": 72, "light": 18}
    assert list(shares) == ["modest", "heavy", "light"], "as they would be full"


def test_who_asks_for_nothing_gets_nothing_and_nobody_more_than_it_asks_for() -> None:
    assert max_min_shares(100, {"a": 0, "b": 30}, {"a": 1, "b": 1}) == {"a": 0, "b": 30}
    assert max_min_shares(100, dict[str, float](), {}) == {}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 100.0), min_size=1),
    st.floats(0.1, 500.0),
    st.lists(st.integers(1, 8), min_size=6, max_size=6),
)
def test_everybody_is_filled_to_one_level_or_to_the_brim(
    demands: dict[str, float], capacity: float, weights: list[int]
) -> None:
    by_name = dict(zip("abcdef", weights, strict=True))
    shares = max_min_shares(capacity, demands, by_name)
    assert sum(shares.values()) == pytest.approx(min(capacity, sum(demands.values())))
    level = max(shares[one] / by_name[one] for one in shares)
    for one, share in shares.items():
        assert share <= demands[one] * (1 + 1e-9)
        assert share == pytest.approx(demands[one]) or share / by_name[one] == pytest.approx(level)
