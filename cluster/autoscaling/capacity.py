"""What one replica can do, in tokens/s of service: learned from what replicas do.

Pure. Algorithm: a decayed maximum. It rises at once to whatever a replica does, smoothed over `SMOOTH_S`; it
falls, by half in `HALF_LIFE_S`, only while a replica has had requests waiting for `SATURATED_AFTER` samples
in a row and does less. The idle time of replicas says nothing of what they could do, so it changes nothing.
The stated value that this begins with goes as soon as one replica was full for `LEARNED_AFTER` samples.
Failure mode: a value that is too low stays while no replica has to do more: at most too many replicas, until
a load that they have to share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cluster.waiting.fading import kept_after

COLD_TOKENS_PER_S = 1000.0
LEAST_TOKENS_PER_S = 1.0
"""A replica that stands still is for its watchdog; no number of them would do."""
SMOOTH_S = 5.0
HALF_LIFE_S = 30.0
SATURATED_AFTER = 5
MAX_PASSED_S = 5.0
"""After a longer time without samples nobody knows what was done in it: it counts as so much."""
LEARNED_AFTER = 15
"""Smoothed values have come within a twentieth of what is done by then."""


class ReplicaRate(NamedTuple):
    """What one replica does at the moment."""

    tokens_per_s: float
    """Computed, without what was computed again."""
    num_running: int
    num_waiting: int


class _Watched:
    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self.num_waited = 0
        """Samples in a row with requests waiting."""


class CapacityEstimate:
    """Owns the estimate, and what each replica did of late."""

    def __init__(self, tokens_per_s: float = COLD_TOKENS_PER_S) -> None:
        self.tokens_per_s = tokens_per_s
        """Of one replica; above 0."""
        self._is_stated = True
        self._watched: dict[str, _Watched] = {}
        self._observed_at: float | None = None

    def observe(self, now: float, rates: Mapping[str, ReplicaRate]) -> None:
        """About once a second, all replicas that serve by their ids."""
        passed_s = 0.0 if self._observed_at is None else min(now - self._observed_at, MAX_PASSED_S)
        self._observed_at = now
        self._watched = {replica_id: self._watched.get(replica_id, _Watched()) for replica_id in rates}
        for replica_id, rate in rates.items():
            watched = self._watched[replica_id]
            new_part = 1 - kept_after(passed_s, SMOOTH_S)
            watched.tokens_per_s += new_part * (rate.tokens_per_s - watched.tokens_per_s)
            watched.num_waited = watched.num_waited + 1 if rate.num_waiting else 0
        self._learn(passed_s)

    def _learn(self, passed_s: float) -> None:
        best = max((one.tokens_per_s for one in self._watched.values()), default=0.0)
        saturated = [one.tokens_per_s for one in self._watched.values() if one.num_waited >= SATURATED_AFTER]
        if saturated:
            kept = self.tokens_per_s * 0.5 ** (passed_s / HALF_LIFE_S)
            if self._is_stated and max(one.num_waited for one in self._watched.values()) >= LEARNED_AFTER:
                self._is_stated, kept = False, 0.0
            self.tokens_per_s = max(kept, *saturated)
        self.tokens_per_s = max(self.tokens_per_s, best, LEAST_TOKENS_PER_S)
