"""What a gateway's queue is told of the replicas, and they of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Protocol

from cluster.backlog import Backlog
from cluster.generation import PRIORITY
from cluster.waiting.arrival import Arrival
from cluster.waiting.fleet import Fleet
from cluster.waiting.gateway_queue import GatewayQueue
from engine.counters import EngineCounters
from tenants.queued import Share

LOOK_EVERY_S = 0.1
"""What the queue knows of the replicas, and they of it, is no older."""


class Replicas(Protocol):
    """What is needed of `Links`."""

    def states(self) -> Mapping[str, EngineCounters]: ...

    def num_seats(self) -> Mapping[str, int]:
        """Of each replica that takes work: how many requests it can run at once."""

    def report(self, backlogs: Iterable[Backlog]) -> None: ...


class FleetWatch:
    """Owns when the queue was told last. `clock` is monotonic, in seconds.

    `next_replica_s()` is when the next replica will take work, on that clock; None: nobody knows of one.
    """

    def __init__(
        self,
        queue: GatewayQueue,
        replicas: Replicas,
        clock: Callable[[], float],
        next_replica_s: Callable[[], float | None] = lambda: None,
        *,
        starts_on_demand: bool = False,
    ) -> None:
        self._queue = queue
        self._replicas = replicas
        self._clock = clock
        self._next_replica_s = next_replica_s
        self._starts_on_demand = starts_on_demand
        self._due_s = float("-inf")
        self._ready: Set[str] = frozenset()
        """Who took work then."""

    @property
    def is_start_expected(self) -> bool:
        """Whether a replica is on its way, or will be once somebody waits for one."""
        return self._starts_on_demand or self._next_replica_s() is not None

    def look_if_due(self) -> None:
        """Also at once when another replica takes work, or one does no more."""
        if self._clock() >= self._due_s or self._replicas.num_seats().keys() != self._ready:
            self.look()

    def look(self) -> None:
        now = self._clock()
        self._due_s = now + LOOK_EVERY_S
        num_seats, states = self._replicas.num_seats(), self._replicas.states()
        self._ready = num_seats.keys()
        for replica_id in num_seats:
            if (counters := states.get(replica_id)) is not None:
                self._queue.estimator.rates.observe(replica_id, counters, now)
        self._queue.see(self._fleet(num_seats, states), now)

    def _fleet(self, num_seats: Mapping[str, int], states: Mapping[str, EngineCounters]) -> Fleet:
        free = sum(max(0, seats - _num_there(states.get(name))) for name, seats in num_seats.items())
        return Fleet(len(num_seats), sum(num_seats.values()), free, self._next_replica_s())

    def report(self, waiting: Iterable[Arrival]) -> None:
        by_share: dict[Share, list[Arrival]] = {}
        for arrival in waiting:
            by_share.setdefault(arrival.share, []).append(arrival)
        self._replicas.report([_backlog(share, arrivals) for share, arrivals in by_share.items()])


def _num_there(counters: EngineCounters | None) -> int:
    return 0 if counters is None else counters.requests_running + counters.requests_waiting


def _backlog(share: Share, arrivals: list[Arrival]) -> Backlog:
    num_tokens = sum(arrival.uncached_tokens for arrival in arrivals)
    num_requests = sum(arrival.num_siblings for arrival in arrivals)
    return Backlog(share.tenant_id, num_tokens, num_requests, share.weight, PRIORITY[share.service_class])
