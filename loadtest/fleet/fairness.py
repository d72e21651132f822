"""How fairly tenants were served: what each got of what was its due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenants.max_min import max_min_shares


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
