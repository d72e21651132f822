"""How much longer a wait is than the line that one stands behind."""

from __future__ import annotations

from collections import defaultdict

from cluster.waiting.fading import DecayedSum
from tenants.fair_queue import Share

TIME_CONSTANT_S = 5.0
LEAST_S = 1.0
"""A line that is shorter teaches nothing: how steps fall makes as much of the wait."""
MOST = 20.0


class _Waits:
    """Seconds of waits that ended, fading: as they were, and as the lines said."""

    def __init__(self) -> None:
        self._actual_s = DecayedSum(TIME_CONSTANT_S)
        self._drain_s = DecayedSum(TIME_CONSTANT_S)

    def add(self, drain_s: float, actual_s: float, now: float) -> None:
        self._actual_s.add(actual_s, now)
        self._drain_s.add(drain_s, now)

    def factor(self, now: float) -> float:
        """Goes back to 1 while nothing is told."""
        return (self._actual_s.at(now) + LEAST_S) / (self._drain_s.at(now) + LEAST_S)


class Slowdown:
    """Owns, for each class and weight, actual waits ÷ what their lines were reckoned to take.

    Replicas do more than this gateway knows of, other gateways' requests above all. These stand in no line
    here, but all that wait feel them.
    Failure mode: it is learned from waits that have ended, so a change is felt one wait later.
    """

    def __init__(self) -> None:
        self._waits: defaultdict[tuple[bool, int], _Waits] = defaultdict(_Waits)

    def told(self, share: Share, drain_s: float, actual_s: float, now: float) -> None:
        if drain_s >= LEAST_S:
            self._waits[share.standing].add(drain_s, actual_s, now)

    def factor(self, share: Share, now: float) -> float:
        """Between 1 and `MOST`: a line is never reckoned to be faster than the replicas are."""
        if share.standing not in self._waits:
            return 1.0
        return min(max(self._waits[share.standing].factor(now), 1.0), MOST)
