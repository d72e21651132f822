"""One pool as the launcher watches it: who serves, who is on the way and for how long still, who leaves.

Pure. What Serve has not begun of what was ordered counts as on its way, too.
"""

from __future__ import annotations

from cluster.autoscaling.cold_start import STAGES, ColdStart
from cluster.autoscaling.policy import FleetView
from cluster.autoscaling.starts import Starts
from cluster.autoscaling.view import ReplicaView
from cluster.pool_status import PoolStatus


class PoolWatch:
    """Owns how far each replica of the pool is; what was learned of starts is the model's, not the pool's."""

    def __init__(self, cold_start: ColdStart) -> None:
        self.cold_start = cold_start
        self.trouble: str | None = None
        """What the last replica that failed to start told; None once one has started well since."""
        self._starts = Starts()
        self._pool = PoolStatus(frozenset(), 0)
        self._now = 0.0

    def look(self, pool: PoolStatus, now: float) -> None:
        """The pool as Serve tells it now; then `hear` what replicas told, then `learn`."""
        self._pool, self._now = pool, now
        self._starts.begin(pool.starting, now)

    def hear(self, replica_id: str, stage: str, seconds: float, error: str | None) -> None:
        if error is None:
            self._starts.hear(replica_id, stage, seconds, self._now)
        else:
            self.trouble = f"{stage}: {error}"

    def learn(self) -> None:
        """From the starts that have ended."""
        for seconds in self._starts.end(self._pool.starting, self._pool.running, self._now):
            self.cold_start.learn(seconds)
            self.trouble = None

    def fleet(self) -> FleetView:
        return FleetView(
            target=self._pool.target,
            num_serving=len(self._pool.running),
            etas_s=[one.eta_s for one in self.replicas() if one.eta_s is not None],
            num_leaving=len(self._pool.leaving),
            cold_start_s=self.cold_start.total_s,
        )

    def replicas(self) -> list[ReplicaView]:
        """Those that serve first, in the order of their ids."""
        serving = [ReplicaView(replica_id=one, state="serving") for one in sorted(self._pool.running)]
        leaving = [ReplicaView(replica_id=one, state="leaving") for one in sorted(self._pool.leaving)]
        return [*serving, *self._on_the_way(), *leaving]

    def _on_the_way(self) -> list[ReplicaView]:
        begun = [
            ReplicaView(
                replica_id=one.replica_id,
                state="provisioning" if one.stage == STAGES[0] else "starting",
                stage=one.stage,
                in_stage_s=one.in_stage_s,
                eta_s=self.cold_start.eta_s(one.stage, one.in_stage_s),
            )
            for one in self._starts.on_the_way(self._now)
        ]
        num_missing = max(0, self._pool.target - len(self._pool.running) - len(begun))
        ordered = ReplicaView(replica_id=None, state="provisioning", eta_s=self.cold_start.total_s)
        return begun + num_missing * [ordered]
