"""Runs rollouts in the launcher: looks every half second, does what the pure part says, and tells it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec
import redis

from cluster.pool_control import PoolControl
from cluster.rollout.check import TextRules, Version, check_version
from cluster.rollout.rollout import Order, RollingUpdate, Rollout, RolloutState
from cluster.rollout.shift import Delete, Move, Seen, ShiftFailed
from cluster.spec import ClusterSpec
from cluster.stages import StartError
from cluster.start_watch import ClosableReports
from tenants.store import CorruptRecord

log = logging.getLogger("headrace.launch")

LOOK_EVERY_S = 0.5
TELL_SERVING_EVERY_S = 60.0
TROUBLE_LIMIT_S = 60.0
"""Ray may not answer for some seconds while it mends itself; after this the rollout goes no further."""
_LOGS = "see <state-dir>/run/ray and launch.log"


class Queue(Protocol):
    """`RolloutQueue`: where rollouts are asked for, and what gateways read."""

    def asked(self) -> Order | None: ...

    def tell(self, rollout: Rollout) -> None: ...

    def drop(self) -> None: ...

    def tell_serving(self, model: str) -> None: ...

    def close(self) -> None: ...


class _Run:
    """One rollout under way: what is asked of the pools, and what its new replicas say."""

    def __init__(self, version: Version, serving: ClusterSpec, size: int, reports: ClosableReports) -> None:
        self.version = version
        self.size = size
        self.specs = {spec.pool_id: spec for spec in (serving, version.spec)}
        self.update = RollingUpdate(
            serving.pool_id,
            version.spec.pool_id,
            size=size,
            drain_limit_s=serving.settings.drain_limit_s,
        )
        self.reports = reports
        self.due: Move | None = None
        """Decided, and not yet done."""
        self.trouble_since: float | None = None


class RolloutRunner:
    """Owns the rollout under way, and which version serves.

    `reports_of(spec)` is what replicas of that pool tell of their starts; `has_room(version)` whether one
    more replica could start; `clock` is monotonic and `wall_clock` Unix time; `say` gets each step in words.
    """

    def __init__(
        self,
        serving: ClusterSpec,
        rules: TextRules,
        pools: PoolControl,
        queue: Queue,
        reports_of: Callable[[ClusterSpec], ClosableReports],
        *,
        has_room: Callable[[Version], bool],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.serving = serving
        self._rules = rules
        self._pools = pools
        self._queue = queue
        self._reports_of = reports_of
        self._has_room = has_room
        self._clock = clock
        self._wall_clock = wall_clock
        self._say = say
        self._rollout: Rollout | None = None
        self._told: Rollout | None = None
        self._run: _Run | None = None
        self._next_look = self._next_telling = clock()

    @property
    def is_idle(self) -> bool:
        """Whether no rollout is under way."""
        return self._rollout is None

    def tick(self) -> None:
        """To be called often; does nothing between two looks. Never raises."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        try:
            self._look_after(now)
        except Exception:  # the cluster serves on, whatever became of a rollout
            log.exception("the rollout could not be looked after")

    def _look_after(self, now: float) -> None:
        if self._rollout is None:
            self._take_up()
        elif self._run is not None:
            self._advance(self._run, self._rollout, now)
        self._tell_serving(now)
        self._tell()

    def close(self) -> None:
        """Leaves a rollout where it is: the cluster goes down with it."""
        if self._run is not None:
            self._run.reports.close()
        self._queue.close()

    def _take_up(self) -> None:
        with suppress(redis.RedisError):
            try:
                order = self._queue.asked()
            except CorruptRecord as error:
                log.error("a rollout that was asked for is dropped: %s", error)
                self._queue.drop()
            else:
                if order is not None and order.rollout.state == "pending":
                    self._begin(order)

    def _begin(self, order: Order) -> None:
        rollout = self._rollout = msgspec.structs.replace(order.rollout, state="checking")
        self._tell()
        try:
            version = check_version(order, self.serving, self._rules)
            status = self._pools.status(self.serving.pool_id)
            if status is None:
                raise StartError("there is no pool of replicas that serves", _LOGS)
        except StartError as error:
            self._refuse(error.message, error.remedy)
        except Exception as error:
            log.exception("rollout %s could not begin", rollout.rollout_id)
            self._refuse(type(error).__name__, _LOGS)
        else:
            self._run = _Run(version, self.serving, status.target, self._reports_of(version.spec))
            self._update(state="running", num_replicas=status.target)
            self._step(
                f"checked: {version.spec.settings.model}, revision {(version.spec.revision or '')[:12]}"
            )

    def _refuse(self, error: str, remedy: str) -> None:
        self._step("nothing was started: the old version serves on")
        self._end("failed", error, remedy)

    def _advance(self, run: _Run, rollout: Rollout, now: float) -> None:
        try:
            self._go_on(run, rollout, now)
            run.trouble_since = None
        except Exception as error:
            if run.trouble_since is None:
                log.exception("rollout %s meets trouble", rollout.rollout_id)
                run.trouble_since = now
            if now - run.trouble_since > TROUBLE_LIMIT_S:
                run.trouble_since = run.due = None
                run.update.roll_back(ShiftFailed(f"Ray Serve failed: {type(error).__name__}", _LOGS))
                self._turned(run)

    def _go_on(self, run: _Run, rollout: Rollout, now: float) -> None:
        if run.due is None:
            seen = self._look(run, rollout)
            outcome = run.update.outcome(seen, now)
            if outcome is not None:
                self._conclude(run, outcome, seen)
                return
            reason = run.update.failure
            run.due = run.update.next(seen, now)
            if run.update.failure is not reason:
                self._turned(run)
        if run.due is not None:
            self._do(run, run.due)
            self._step(run.update.describe(run.due))
            run.due = None

    def _look(self, run: _Run, rollout: Rollout) -> Seen:
        names = (self.serving.pool_id, run.version.spec.pool_id)
        pools = {name: status for name in names if (status := self._pools.status(name)) is not None}
        new = pools.get(run.version.spec.pool_id)
        num_updated = len(new.running) if new else 0
        if num_updated != rollout.num_updated:
            self._update(num_updated=num_updated)
        growing = pools.get(run.update.growing)
        failure = self._hear(run) or (growing and growing.failure and (growing.failure, _LOGS)) or None
        num_running = {name: len(status.running) for name, status in pools.items()}
        return Seen(num_running, self._has_room(run.version), failure)

    def _hear(self, run: _Run) -> tuple[str, str] | None:
        """What the growing pool's replicas have told since: the first failure, if there was one."""
        with suppress(redis.RedisError):
            for report in run.reports.pop_all():
                if report.error is not None:
                    return report.error, report.remedy
                self._step(f"{report.stage} passed in {report.seconds:.1f} s")
        return None

    def _do(self, run: _Run, move: Move) -> None:
        """Safe to repeat, should it fail on the way."""
        if isinstance(move, Delete):
            self._pools.delete(move.pool_id)
        elif move.pool_id in self._pools.pools():
            self._pools.scale(move.pool_id, move.num_replicas)
        else:
            self._pools.deploy(run.specs[move.pool_id], move.num_replicas)

    def _turned(self, run: _Run) -> None:
        """From now on the old pool's replicas are those that start: what they said before is past."""
        failure = run.update.failure
        assert failure is not None
        run.reports.close()
        run.reports = self._reports_of(self.serving)
        with suppress(redis.RedisError):
            run.reports.pop_all()
        self._update(state="reverting")
        self._step(f"failed: {failure.message}")

    def _conclude(self, run: _Run, outcome: RolloutState, seen: Seen) -> None:
        failure = run.update.failure
        if failure is None:
            self.serving = run.version.spec
            self._next_telling = self._clock()
            self._end(outcome)
            return
        num_old = seen.num_running.get(self.serving.pool_id, 0)
        self._step(f"the old version serves with {num_old} of {run.size} replica(s)")
        self._end(outcome, failure.message, failure.remedy)

    def _end(self, state: RolloutState, error: str | None = None, remedy: str | None = None) -> None:
        if self._run is not None:
            self._run.reports.close()
            self._run = None
        self._update(state=state, error=error, remedy=remedy, ended_at=self._wall_clock())
        self._say(f"{state}" + (f": {error}" if error else ""))

    def _update(self, **fields: object) -> None:
        assert self._rollout is not None
        self._rollout = msgspec.structs.replace(self._rollout, **fields)

    def _step(self, text: str) -> None:
        assert self._rollout is not None
        self._rollout = self._rollout.with_step(self._wall_clock(), text)
        self._say(text)

    def _tell(self) -> None:
        """If anything is new, or was not told because Redis was away."""
        rollout = self._rollout
        if rollout is None:
            return
        if rollout is not self._told:
            try:
                self._queue.tell(rollout)
            except redis.RedisError:
                return
            self._told = rollout
        if rollout.has_ended:
            self._rollout = None

    def _tell_serving(self, now: float) -> None:
        """Again and again, for Redis may have been away or emptied."""
        if now < self._next_telling:
            return
        with suppress(redis.RedisError):
            self._queue.tell_serving(self.serving.settings.model)
            self._next_telling = now + TELL_SERVING_EVERY_S
