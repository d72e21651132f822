"""The one way this program takes percentiles: nearest rank.

The result is always a value that was measured, and p99 of few values is their largest, never less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` % of `values` do not exceed; None of no values.

    `values` need not be sorted. Raises ValueError unless 0 < percent ≤ 100.
    """
    return percentiles(values, [percent])[0]


def percentiles(values: Sequence[float], percents: Iterable[float]) -> list[float | None]:
    """`percentile` for each of `percents`, sorting once."""
    ordered = sorted(values)
    return [_at(ordered, percent) for percent in percents]


def _at(ordered: list[float], percent: float) -> float | None:
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be above 0 and at most 100, not {percent:g}")
    if not ordered:
        return None
    return ordered[ceil(len(ordered) * percent / 100) - 1]
