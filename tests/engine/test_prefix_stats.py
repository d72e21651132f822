"""Sums of lookups: each token once, with one reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.prefix_stats import MISS_REASONS, PrefixStats

_stats = st.builds(
    PrefixStats, *[st.integers(0, 9) for _ in range(5)], diverged_at=st.none() | st.integers(1, 9)
)


def test_every_looked_up_token_is_a_hit_or_a_miss_with_one_reason() -> None:
    stats = PrefixStats(
        hit_tokens=1, evicted_tokens=20, diverged_tokens=300, cold_tokens=4000, below_block_tokens=50_000
    )
    assert (stats.queries_tokens, stats.attainable_tokens) == (54_321, 21)
    misses = {reason: getattr(stats, f"{reason}_tokens") for reason in MISS_REASONS}
    assert misses == {"cold": 4000, "evicted": 20, "diverged": 300, "below_block": 50_000}


@given(st.lists(_stats, max_size=20))
def test_a_sum_has_each_token_of_its_lookups_once_and_no_place_of_divergence(
    lookups: list[PrefixStats],
) -> None:
    total = sum(lookups, PrefixStats())
    for name in ("hit_tokens", *(f"{reason}_tokens" for reason in MISS_REASONS)):
        assert getattr(total, name) == sum(getattr(lookup, name) for lookup in lookups)
    assert total.queries_tokens == sum(lookup.queries_tokens for lookup in lookups)
    assert total.diverged_at is None
