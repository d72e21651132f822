"""A mean in which the past fades."""

from __future__ import annotations


class DecayedMean:
    """Σ amount ÷ Σ weight, after the past was made less by each `fade`.

    Starts as `cold`, which counts as if it had been seen with `cold_weight`. Fading alone changes nothing:
    without news the last value stays, and gives way to the next news the faster.
    """

    def __init__(self, cold: float, cold_weight: float) -> None:
        self._amount = cold * cold_weight
        self._weight = cold_weight
        self._least_weight = cold_weight * 1e-6  # fading for ever must not end in 0 ÷ 0

    @property
    def value(self) -> float:
        return self._amount / self._weight

    def fade(self, factor: float) -> None:
        """`factor` in [0, 1] of the past stays."""
        factor = max(factor, self._least_weight / self._weight)
        self._amount *= min(factor, 1.0)
        self._weight *= min(factor, 1.0)

    def add(self, amount: float, weight: float) -> None:
        self._amount += amount
        self._weight += weight
