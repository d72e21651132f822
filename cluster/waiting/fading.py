"""How the past fades."""

from __future__ import annotations

import math


def kept_after(seconds: float, time_constant_s: float) -> float:
    """The part of the past that is left: 1/e after one time constant, all of it where no time has passed."""
    return math.exp(-max(0.0, seconds) / time_constant_s)


class DecayedSum:
    """Owns the sum of amounts, each of which has faded since it came."""

    def __init__(self, time_constant_s: float) -> None:
        self._time_constant_s = time_constant_s
        self._sum = 0.0
        self.added_at = -math.inf
        """When the last amount came."""

    def add(self, amount: float, now: float) -> None:
        self._sum = self.at(now) + amount
        self.added_at = now

    def at(self, now: float) -> float:
        return self._sum * kept_after(now - self.added_at, self._time_constant_s)
