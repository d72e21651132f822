"""What a gateway's queue is told of the replicas, and they of it; in production and in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Protocol

from cluster.backlog import Backlog
from cluster.generation import PRIORITY
from cluster.routing import ReplicaLoad
from cluster.waiting.arrival import Arrival
from cluster.waiting.fleet import Fleet
from cluster.waiting.wait_estimate import WaitEstimator
from engine.counters import EngineCounters
from tenants.queued import Share

LOOK_EVERY_S = 0.1
"""What the queue knows of the replicas, and they of it, is no older."""


class WatchedQueue(Protocol):
    """What is needed of `GatewayQueue`."""

    @property
    def estimator(self) -> WaitEstimator: ...

    def see(self, fleet: Fleet, now: float) -> None: ...


class WatchedReplicas(Protocol):
    """What is needed of `Links`."""

    def candidates(self) -> Sequence[ReplicaLoad]:
        """Those that take work."""

    def states(self) -> Mapping[str, EngineCounters]: ...

    def report(self, backlogs: Iterable[Backlog]) -> None: ...


class FleetWatch:
    """Owns when the queue was told last. `clock` is monotonic, in seconds.

    `next_replica_s()` is when the next replica will take work, on that clock; None: nobody knows of one.
    """

    def __init__(
        self,
        queue: WatchedQueue,
        replicas: WatchedReplicas,
        clock: Callable[[], float],
        next_replica_s: Callable[[], float | None] = lambda: None,
        *,
        starts_on_demand: bool = False,
        num_gateways: int = 1,
    ) -> None:
        self._queue = queue
        self._replicas = replicas
        self._clock = clock
        self._next_replica_s = next_replica_s
        self._starts_on_demand = starts_on_demand
        self._num_gateways = num_gateways
        self._due_s = float("-inf")
        self._ready: Set[str] = frozenset()
        """Who took work then."""

    @property
    def is_start_expected(self) -> bool:
        """Whether a replica is on its way, or will be once somebody waits for one."""
        return self._starts_on_demand or self._next_replica_s() is not None

    def look_if_due(self) -> None:
        """Also at once when another replica takes work, or one does no more."""
        if self._clock() >= self._due_s or _ids(self._replicas.candidates()) != self._ready:
            self.look()

    def look(self) -> None:
        now = self._clock()
        self._due_s = now + LOOK_EVERY_S
        there, states = self._replicas.candidates(), self._replicas.states()
        self._ready = _ids(there)
        for one in there:
            if (counters := states.get(one.replica_id)) is not None:
                self._queue.estimator.rates.observe(one.replica_id, counters, now)
        self._queue.see(self._fleet(there), now)

    def _fleet(self, there: Sequence[ReplicaLoad]) -> Fleet:
        num_seats = sum(one.num_seats for one in there)
        free_seats = sum(one.free_seats for one in there)
        part = self._part(there, num_seats)
        return Fleet(len(there), num_seats, free_seats, self._next_replica_s(), part)

    def _part(self, there: Sequence[ReplicaLoad], num_seats: int) -> float:
        """As windows say; no less than an equal one: a window is small while nobody waits for it."""
        own_seats = sum(one.part * one.num_seats for one in there)
        return max(own_seats / max(1, num_seats), 1 / self._num_gateways)

    def report(self, waiting: Iterable[Arrival]) -> None:
        by_share: dict[Share, list[Arrival]] = {}
        for arrival in waiting:
            by_share.setdefault(arrival.share, []).append(arrival)
        self._replicas.report([_backlog(share, arrivals) for share, arrivals in by_share.items()])


def _ids(there: Sequence[ReplicaLoad]) -> frozenset[str]:
    return frozenset(one.replica_id for one in there)


def _backlog(share: Share, arrivals: list[Arrival]) -> Backlog:
    num_tokens = sum(arrival.uncached_tokens for arrival in arrivals)
    num_requests = sum(arrival.num_siblings for arrival in arrivals)
    return Backlog(share.tenant_id, num_tokens, num_requests, share.weight, PRIORITY[share.service_class])
