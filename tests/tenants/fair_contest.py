"""Tenants that compete for what leaves one or several fair queues, and what each of them got, event by event.

A request leaves, and makes its output in parts afterwards; the queue is charged for each part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tenants.fair_queue import Charge, FairQueue, Queued, Share


class Moment(NamedTuple):
    """After an event."""

    served: Mapping[str, float]
    """Tokens of service by tenant, since the beginning."""
    waiting: frozenset[str]
    """Tenants that wait at every queue."""


@dataclass
class Running:
    entry: Queued
    to_make: int


class Contest:
    """Owns what was served. The queue that is named is told of it, the others are not."""

    def __init__(self, shares: Iterable[Share], *queues: FairQueue) -> None:
        self.shares = {share.tenant_id: share for share in shares}
        self.served: defaultdict[str, float] = defaultdict(float)
        self.moments: list[Moment] = []
        self.running: list[Running] = []
        self._queues = queues
        self._largest_input: defaultdict[str, float] = defaultdict(float)
        self._most_to_make: defaultdict[str, int] = defaultdict(int)

    def leave(self, queue: FairQueue, to_make: int) -> Running | None:
        entry = queue.pop()
        if entry is None:
            return None
        running = Running(entry, to_make)
        self.running.append(running)
        self._measure(entry)
        self._serve(entry.share.tenant_id, entry.input_service)
        return running

    def make(self, queue: FairQueue, running: Running, tokens: int) -> int:
        """At most so many tokens of its output. How many it were."""
        made = min(tokens, running.to_make)
        running.to_make -= made
        if not running.to_make:
            self.running.remove(running)
        queue.charge(running.entry.share, made)
        self._serve(running.entry.share.tenant_id, made)
        return made

    def take_back(self, queue: FairQueue, charge: Charge) -> None:
        """It got nothing."""
        queue.refund(charge)
        self._serve(charge.entry.share.tenant_id, -charge.entry.input_service)

    def cancel(self, queue: FairQueue, entry_id: str) -> None:
        queue.remove(entry_id)
        self._look()

    def between_leaves(self, tenant_id: str) -> float:
        """D/w of the bound: the largest input, and the most that the running requests had to make."""
        most = self._largest_input[tenant_id] + self._most_to_make[tenant_id]
        return most / self.shares[tenant_id].weight

    def furthest_ahead(self, one: str, other: str) -> float:
        """The most that `one` got more than `other`, by weight, within any time in which the other waited."""
        furthest, least = 0.0, float("inf")
        for served, waiting in self.moments:
            if other not in waiting:
                least = float("inf")
                continue
            lead = served[one] / self.shares[one].weight - served[other] / self.shares[other].weight
            least = min(least, lead)
            furthest = max(furthest, lead - least)
        return furthest

    def _measure(self, entry: Queued) -> None:
        tenant_id = entry.share.tenant_id
        to_make = sum(one.to_make for one in self.running if one.entry.share.tenant_id == tenant_id)
        self._most_to_make[tenant_id] = max(self._most_to_make[tenant_id], to_make)
        self._largest_input[tenant_id] = max(self._largest_input[tenant_id], entry.input_service)

    def _serve(self, tenant_id: str, tokens: float) -> None:
        self.served[tenant_id] += tokens
        self._look()

    def _look(self) -> None:
        waiting = [one for one in self.shares if all(queue.num_of(one) for queue in self._queues)]
        self.moments.append(Moment(defaultdict(float, self.served), frozenset(waiting)))
