"""Who else comes: what other tenants' requests take of the replicas while one waits."""

from __future__ import annotations

import math

from cluster.waiting.fading import DecayedSum, kept_after
from tenants.queued import Share

TIME_CONSTANT_S = 5.0
MOST = 0.95
"""Of the replicas' time: others are never thought to take all of it."""
LEAST_SEEN_S = 0.5
"""The first requests of all are not thought to come as fast as that for ever."""
FORGOTTEN_S = 30.0
"""Who has taken nothing for so long takes nothing."""


class Rivals:
    """Owns which part of the replicas' time each tenant took of late.

    A line says who stands before a request now. But who comes later and has had less of its share goes first,
    too: a tenant that sends steadily and never waits stands in no line, and takes its part all the same.
    """

    def __init__(self) -> None:
        self._taken_s: dict[Share, DecayedSum] = {}
        """Of all replicas' time."""
        self._began_at = math.inf
        self._swept_at = -math.inf

    def took(self, share: Share, seconds: float, now: float) -> None:
        """`seconds`: of all replicas' time."""
        self._sweep(now)
        self._began_at = min(self._began_at, now)
        self._taken_s.setdefault(share, DecayedSum(TIME_CONSTANT_S)).add(seconds, now)

    def stretch(self, share: Share, now: float, *, without_lower: bool = False) -> float:
        """How many times as long as by itself a tenant's own line takes, if the others go on as of late.

        Those of its class take no more than their weight against its own. What batch takes of interactive is
        left aside: a twentieth at most. `without_lower`: if all that stand lower were gone.
        """
        above_s, beside_s, weights = 0.0, 0.0, 0
        for other, taken_s in self._taken_s.items():
            if other.tenant_id == share.tenant_id or (without_lower and other.standing < share.standing):
                continue
            if other.service_class == share.service_class:
                beside_s += taken_s.at(now)
                weights += other.weight
            elif other.service_class == "interactive":
                above_s += taken_s.at(now)
        seen_s = self._seen_s(now)
        left = 1 - min(above_s / seen_s, MOST)
        part = min(beside_s / seen_s / left, MOST)
        return (1 + min(part / (1 - part), weights / share.weight)) / left

    def _seen_s(self, now: float) -> float:
        """So much time has faded as the shares in it: less than the constant, right after the start."""
        seen_s = max(now - self._began_at, LEAST_SEEN_S)
        return TIME_CONSTANT_S * (1 - kept_after(seen_s, TIME_CONSTANT_S))

    def _sweep(self, now: float) -> None:
        if now - self._swept_at > FORGOTTEN_S:
            self._swept_at = now
            self._taken_s = {
                share: taken_s
                for share, taken_s in self._taken_s.items()
                if now - taken_s.added_at < FORGOTTEN_S
            }
