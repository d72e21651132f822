"""Round robin: one after the other, in the order of their ids.

Algorithm: the candidate whose id comes next after the last chosen one's, then from the first again.
Failure mode: it sees neither load nor cache. Long requests pile up where they happen to fall, a slow replica
gets as much as a fast one, and every cache comes to hold the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from cluster.routing import ReplicaLoad, RoutingPrompt


class RoundRobin:
    """Owns the id that was chosen last."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[ReplicaLoad], prompt: RoutingPrompt, rng: Random) -> str:
        replica_ids = [replica.replica_id for replica in candidates]
        self._last = min((one for one in replica_ids if one > self._last), default=min(replica_ids))
        return self._last
