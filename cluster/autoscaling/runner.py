"""Scales in the launcher: once a second it reads the demand, does what the pure part says, and tells it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import redis

from cluster.autoscaling.cold_start import ColdStart
from cluster.autoscaling.demand import Demand, DemandReader, GatewayDemand
from cluster.autoscaling.fleet import PoolWatch
from cluster.autoscaling.policy import Autoscaler, Decision, FleetView
from cluster.autoscaling.view import (
    CapacityView,
    ClusterStatus,
    ColdStartView,
    DemandView,
    HeadroomView,
)
from cluster.pool_control import PoolControl
from cluster.pool_status import PoolStatus
from cluster.spec import ClusterSpec
from cluster.start_watch import ClosableReports

log = logging.getLogger("headrace.scaling")

LOOK_EVERY_S = 1.0
BLIND_S = 5.0
"""Where demand could not be read for so long, there may be some: then there is one replica at least."""
SETTLED_LOOK_EVERY_S = 5.0
"""At a pool where nothing moves: Serve tells all that it knows or nothing, and that takes its time."""


class Board(Protocol):
    """`StatusBoard`: where gateways leave their demand, and read how the cluster stands."""

    def rows(self) -> dict[str, GatewayDemand]: ...

    def tell(self, status: ClusterStatus, gone: Iterable[str] = ()) -> None: ...

    def close(self) -> None: ...


class ServingVersion(Protocol):
    """`RolloutRunner`: which version serves, and whether another one is taking its place."""

    @property
    def serving(self) -> ClusterSpec: ...

    @property
    def is_idle(self) -> bool: ...


class ScalingRunner:
    """Owns the pool that it watches, and what it has learned of each model's starts.

    It orders nothing while a rollout runs, whose replicas these are then. `reports_of(spec)` is what replicas
    of that pool tell of their starts; `clock` is monotonic and `wall_clock` Unix time; `say` gets each order
    in words.
    """

    def __init__(
        self,
        scaler: Autoscaler,
        rollouts: ServingVersion,
        pools: PoolControl,
        board: Board,
        reports_of: Callable[[ClusterSpec], ClosableReports],
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._scaler = scaler
        self._rollouts = rollouts
        self._pools = pools
        self._board = board
        self._reports_of = reports_of
        self._clock = clock
        self._wall_clock = wall_clock
        self._say = say
        self._reader = DemandReader()
        self.cold_starts: defaultdict[str, ColdStart] = defaultdict(ColdStart)
        """By model."""
        self._spec = rollouts.serving
        self._watch = PoolWatch(self.cold_starts[self._spec.settings.model])
        self._reports = reports_of(self._spec)
        self._pool_seen: tuple[PoolStatus, float] | None = None
        """As it was, and when; None: it has changed since."""
        self._next_look = self._read_at = clock()
        self._is_in_trouble = False

    def tick(self) -> None:
        """To be called often; does nothing between two looks. Never raises."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        try:
            self._look_after(now)
            self._is_in_trouble = False
        except Exception as error:  # the cluster serves on with the replicas that it has
            if not self._is_in_trouble:
                log.exception("scaling stands still: %s", type(error).__name__)
            self._is_in_trouble = True

    def close(self) -> None:
        self._reports.close()
        self._board.close()

    def _look_after(self, now: float) -> None:
        self._follow_version()
        self._watch.look(self._pool(now), now)
        if self._rollouts.is_idle:
            self._hear()
        else:  # what replicas tell is for the rollout, which changes pools, too
            self._pool_seen = None
        self._watch.learn()
        fleet = self._watch.fleet()
        demand = self._reader.read(self._rows(fleet, now), now)
        decision = self._decide(now, demand, fleet)
        self._order(decision, fleet)
        self._board.tell(self._status(demand, fleet, decision), self._reader.gone(now))

    def _rows(self, fleet: FleetView, now: float) -> dict[str, GatewayDemand]:
        """Raises `redis.RedisError`. Gateways hold requests for a replica that nobody else would order."""
        try:
            rows = self._board.rows()
        except redis.RedisError:
            if fleet.target == 0 and self._rollouts.is_idle and now - self._read_at >= BLIND_S:
                self._order(Decision(1, "demand cannot be read"), fleet)
            raise
        self._read_at = now
        return rows

    def _order(self, decision: Decision, fleet: FleetView) -> None:
        if decision.target != fleet.target:
            self._pool_seen = None
            self._pools.scale(self._spec.pool_id, decision.target)
            self._say(f"{fleet.target} → {decision.target} replica(s): {decision.reason}")

    def _pool(self, now: float) -> PoolStatus:
        if self._pool_seen is not None:
            pool, seen_at = self._pool_seen
            if pool.is_settled and now - seen_at < SETTLED_LOOK_EVERY_S:
                return pool
        status = self._pools.status(self._spec.pool_id)
        if status is None:
            raise LookupError(f"there is no pool {self._spec.pool_id}")
        self._pool_seen = status, now
        return status

    def _follow_version(self) -> None:
        """After a rollout another pool serves, maybe of another model."""
        spec = self._rollouts.serving
        if spec.pool_id == self._spec.pool_id:
            return
        self._reports.close()
        self._spec, self._reports = spec, self._reports_of(spec)
        self._pool_seen = None
        self._watch = PoolWatch(self.cold_starts[spec.settings.model])

    def _hear(self) -> None:
        with suppress(redis.RedisError):
            for report in self._reports.pop_all():
                self._watch.hear(report.replica_id, report.stage, report.seconds, report.error)

    def _decide(self, now: float, demand: Demand | None, fleet: FleetView) -> Decision:
        if demand is None:
            return Decision(fleet.target, "no gateway tells its demand")
        if not self._rollouts.is_idle:
            return Decision(fleet.target, "a rollout runs")
        return self._scaler.decide(now, demand, fleet)

    def _status(self, demand: Demand | None, fleet: FleetView, decision: Decision) -> ClusterStatus:
        scaler, cold_start = self._scaler, self._watch.cold_start
        expected = scaler.expected_tokens_per_s
        capacity = fleet.num_serving * scaler.tokens_per_s_per_replica
        return ClusterStatus(
            at=self._wall_clock(),
            model=self._spec.served_name,
            min_replicas=scaler.limits.min_replicas,
            max_replicas=scaler.limits.max_replicas,
            target=decision.target,
            reason=decision.reason,
            trouble=self._watch.trouble,
            replicas=tuple(self._watch.replicas()),
            demand=demand
            and DemandView(
                offered_tokens_per_s=demand.offered_tokens_per_s,
                shed_tokens_per_s=demand.shed_tokens_per_s,
                expected_tokens_per_s=expected,
                backlog_tokens=round(demand.backlog_tokens),
            ),
            capacity=CapacityView(
                tokens_per_s=capacity, tokens_per_s_per_replica=scaler.tokens_per_s_per_replica
            ),
            headroom=HeadroomView(
                wanted=scaler.limits.headroom, actual=capacity / expected if expected else None
            ),
            cold_start=ColdStartView(total_s=cold_start.total_s, stages_s=cold_start.by_stage()),
        )
