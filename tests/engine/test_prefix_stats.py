"""Sums of lookups: each token once, of each root apart, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.prefix_stats import PrefixStats, PrefixStatsByRoot

_stats = st.builds(
    PrefixStats, *[st.integers(0, 9) for _ in range(5)], diverged_at=st.none() | st.integers(1, 9)
)


def test_every_looked_up_token_is_a_hit_or_a_miss_with_one_reason() -> None:
    stats = PrefixStats(
        hit_tokens=1, evicted_tokens=20, diverged_tokens=300, cold_tokens=4000, below_block_tokens=50_000
    )
    assert (stats.queries_tokens, stats.attainable_tokens) == (54_321, 21)


def test_a_sum_remembers_the_latest_divergence() -> None:
    early, none, late = PrefixStats(diverged_at=7), PrefixStats(), PrefixStats(diverged_at=30)
    assert [(a + b).diverged_at for a, b in ((early, late), (late, early), (early, none), (none, late))] == [
        30,
        7,
        7,
        30,
    ]


def test_beyond_its_bound_the_least_recently_looked_up_roots_are_one_sum() -> None:
    stats = PrefixStatsByRoot(max_roots=2)
    for root, tokens in ((b"a", 1), (b"b", 10), (b"a", 100), (b"c", 1000), (b"d", 10_000)):
        stats.count(root, PrefixStats(hit_tokens=tokens))
    assert {root: sums.hit_tokens for root, sums in stats.by_root.items()} == {b"c": 1000, b"d": 10_000}
    assert (stats.others.hit_tokens, stats.total.hit_tokens) == (111, 11_111)


def test_a_root_that_returns_starts_anew_and_counts_nothing_twice() -> None:
    stats = PrefixStatsByRoot(max_roots=1)
    for root in (b"a", b"b", b"a"):
        stats.count(root, PrefixStats(cold_tokens=1))
    assert (stats.by_root[b"a"].cold_tokens, stats.others.cold_tokens, stats.total.cold_tokens) == (1, 2, 3)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), _stats), max_size=20), st.integers(1, 3))
def test_the_roots_and_the_others_make_up_the_total(
    lookups: list[tuple[bytes, PrefixStats]], max_roots: int
) -> None:
    stats = PrefixStatsByRoot(max_roots)
    for root, lookup in lookups:
        stats.count(root, lookup)
        assert len(stats.by_root) <= max_roots
    parts = [*stats.by_root.values(), stats.others]
    for name in ("hit_tokens", "evicted_tokens", "diverged_tokens", "cold_tokens", "below_block_tokens"):
        assert getattr(stats.total, name) == sum(getattr(part, name) for part in parts)
    assert stats.total.queries_tokens == sum(lookup.queries_tokens for _, lookup in lookups)
