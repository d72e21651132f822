"""What is each one's due of something that all of them want."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def max_min_shares(capacity: float, demands: Mapping[K, float], weights: Mapping[K, float]) -> dict[K, float]:
    """Max-min fair by weight: all are filled at the same level, none beyond what it asks for.

    In the order in which they are full; what they leave of `capacity` is what nobody asks for. Water-filling
    (Bertsekas and Gallager, Data Networks, 1992, 6.5.2), O(n log n). Weights are above 0.
    """
    shares: dict[K, float] = {}
    left, weight = capacity, sum(weights[one] for one in demands)
    for one in sorted(demands, key=lambda one: demands[one] / weights[one]):
        shares[one] = min(demands[one], left * weights[one] / weight)
        left -= shares[one]
        weight -= weights[one]
    return shares
