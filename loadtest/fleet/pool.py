"""The replicas of a fleet in virtual time: on their way stage by stage, serving, leaving."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple

from cluster.autoscaling.cold_start import COLD_S, STAGES
from cluster.pool_status import PoolStatus
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.replica import VirtualReplica

LOOK_EVERY_S = 0.25


class PassedStage(NamedTuple):
    replica_id: str
    stage: str
    seconds: float


class Served(NamedTuple):
    """From when, and until when, a replica took work; in seconds."""

    since: float
    until: float | None
    """None: to the end."""


class VirtualPool:
    """Owns the replicas. `on_added` and `on_ended` tell gateways who comes and who has gone."""

    def __init__(
        self,
        config: FleetConfig,
        clock: VirtualClock,
        on_added: Callable[[VirtualReplica], None],
        on_ended: Callable[[VirtualReplica], None],
    ) -> None:
        self.served: dict[str, Served] = {}
        """Of every replica that ever did."""
        self._config = config
        self._clock = clock
        self._on_added = on_added
        self._on_ended = on_ended
        self._ids = count()
        self._starting: dict[str, None] = {}
        self._serving: dict[str, VirtualReplica] = {}
        self._leaving: dict[str, VirtualReplica] = {}
        self._reports: list[PassedStage] = []
        for _ in range(config.num_replicas):
            self._serve(self._new_id())
        clock.every(LOOK_EVERY_S, self._look)

    def status(self) -> PoolStatus:
        return PoolStatus(
            running=frozenset(self._serving),
            target=len(self._serving) + len(self._starting),
            starting=frozenset(self._starting),
            leaving=frozenset(self._leaving),
        )

    def pop_reports(self) -> list[PassedStage]:
        """What replicas told of their starts since the last time."""
        reports, self._reports = self._reports, []
        return reports

    def scale(self, target: int) -> None:
        """Up by starts; down by whoever came last."""
        while len(self._serving) + len(self._starting) < target:
            self._start(self._new_id())
        while len(self._serving) + len(self._starting) > target:
            if self._starting:
                self._starting.popitem()
            else:
                self._leave()

    def _new_id(self) -> str:
        return f"replica-{next(self._ids)}"

    def _start(self, replica_id: str) -> None:
        self._starting[replica_id] = None
        at = 0.0
        for stage in STAGES:
            seconds = self._config.cold_start_s.get(stage, COLD_S[stage])
            at += seconds
            self._clock.after(at, partial(self._pass, PassedStage(replica_id, stage, seconds)))

    def _pass(self, report: PassedStage) -> None:
        if report.replica_id not in self._starting:
            return
        if report.stage == STAGES[-1]:
            del self._starting[report.replica_id]
            self._serve(report.replica_id)
        elif report.stage != STAGES[0]:  # a node tells nothing
            self._reports.append(report)

    def _serve(self, replica_id: str) -> None:
        replica = self._serving[replica_id] = VirtualReplica(replica_id, self._config, self._clock)
        self.served[replica_id] = Served(self._clock.now, None)
        self._on_added(replica)

    def _leave(self) -> None:
        replica_id, replica = self._serving.popitem()
        self._leaving[replica_id] = replica
        self.served[replica_id] = self.served[replica_id]._replace(until=self._clock.now)
        replica.leave()

    def _look(self) -> None:
        for replica_id, replica in list(self._leaving.items()):
            if replica.has_ended:
                del self._leaving[replica_id]
                self._on_ended(replica)
