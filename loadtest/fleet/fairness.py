"""How fairly tenants were served: what each got of what was its due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def max_min_shares(
    capacity: float, demands: Mapping[str, float], weights: Mapping[str, int]
) -> dict[str, float]:
    """What is each one's due: all are filled at the same level by weight, none beyond what it asks for."""
    shares: dict[str, float] = {}
    left, weight = capacity, sum(weights[one] for one in demands)
    for one in sorted(demands, key=lambda one: demands[one] / weights[one]):
        shares[one] = min(demands[one], left * weights[one] / weight)
        left -= shares[one]
        weight -= weights[one]
    return shares


def jain(values: Iterable[float]) -> float:
    """1 if all are equal, 1 / n if one has everything (Jain et al. 1984)."""
    values = list(values)
    squares = sum(value**2 for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def weighted_jain(
    served: Mapping[str, float], demands: Mapping[str, float], weights: Mapping[str, int]
) -> float:
    """Jain's index over what each got ÷ its due of what all of them got."""
    due = max_min_shares(sum(served.get(one, 0.0) for one in demands), demands, weights)
    return round(jain(served.get(one, 0.0) / due[one] for one in demands if due[one]), 4)
