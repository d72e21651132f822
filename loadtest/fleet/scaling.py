"""What the launcher does each second: look, hear, decide, order, and tell when the next replica comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.autoscaling.cold_start import ColdStart
from cluster.autoscaling.demand import DemandReader
from cluster.autoscaling.fleet import PoolWatch
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.gateway import VirtualGateway
from loadtest.fleet.pool import VirtualPool
from loadtest.fleet.scaler import Scaler

LOOK_EVERY_S = 1.0


class VirtualScaling:
    """Owns what was learned of starts."""

    def __init__(
        self,
        scaler: Callable[[], Scaler],
        config: FleetConfig,
        clock: VirtualClock,
        pool: VirtualPool,
        gateways: Sequence[VirtualGateway],
    ) -> None:
        self._scaler = scaler()
        self._clock = clock
        self._pool = pool
        self._gateways = gateways
        self._reader = DemandReader()
        cold_start = ColdStart()
        cold_start.learn(config.cold_start_s)
        self._watch = PoolWatch(cold_start)
        clock.every(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        now = self._clock.now
        self._watch.look(self._pool.status(), now)
        for report in self._pool.pop_reports():
            self._watch.hear(report.replica_id, report.stage, report.seconds, None)
        self._watch.learn()
        demand = self._reader.read({one.gateway_id: one.demand() for one in self._gateways}, now)
        fleet = self._watch.fleet()
        if demand is not None:
            self._pool.scale(self._scaler.decide(now, demand, fleet).target)
        eta_s = min(fleet.etas_s, default=None)
        for gateway in self._gateways:
            gateway.next_replica_s = None if eta_s is None else now + eta_s
