"""Who was turned away and counts as demand already, until it has come back or given up.

Pure. Algorithm: each one that was counted and turned away stands here until `GRACE_S` after it was told to
come, and for as long as what was counted is remembered at most. It is back where it says so, or comes with
the same prompt when it is due, and stands here no more. Who says so and is not known was turned away by
another gateway, if others of its tenant are by this one.
Failure mode: who says so and was refused by its tenant's limits before counts for nothing while others of
that tenant stand here; and so does who asks the same as one that has given up, just when that one was due.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from cluster.autoscaling.trend import MEMORY_S
from cluster.waiting.promises import EARLY_S, GRACE_S, Client

MAX_KEPT = 50_000
"""Any more count again when they come back."""


class _Told(NamedTuple):
    due_s: float
    counted_s: float


class _Lapse(NamedTuple):
    at_s: float
    number: int
    client: Client


class TurnedAway:
    """Owns who stands outside. Those who ask the same are alike: one that comes is the first of them."""

    def __init__(self) -> None:
        self._numbers = count()
        self._told: dict[Client, dict[int, _Told]] = {}
        """By the number of each."""
        self._num_clients: defaultdict[str, int] = defaultdict(int)
        """By tenant."""
        self._lapses: list[_Lapse] = []
        """A heap; those that came back are in it, too."""

    def add(self, client: Client, *, due_s: float, counted_s: float) -> None:
        """One that was told to come at `due_s` and was counted at `counted_s`."""
        if len(self._lapses) >= MAX_KEPT:
            return
        number = next(self._numbers)
        if client not in self._told:
            self._told[client] = {}
            self._num_clients[client[0]] += 1
        self._told[client][number] = _Told(due_s, counted_s)
        lapses_s = min(due_s + GRACE_S, counted_s + MEMORY_S)
        heappush(self._lapses, _Lapse(lapses_s, number, client))

    def take_back(self, client: Client, now: float, *, says_so: bool) -> float | None:
        """When one that comes now was counted; None: it counts now."""
        self._forget_lapsed(now)
        if client not in self._told:
            return now if says_so and client[0] in self._num_clients else None
        number, told = next(iter(self._told[client].items()))
        if not says_so and now < told.due_s - EARLY_S:
            return None
        self._remove(client, number)
        return told.counted_s

    def _forget_lapsed(self, now: float) -> None:
        while self._lapses and self._lapses[0].at_s <= now:
            lapse = heappop(self._lapses)
            if lapse.number in self._told.get(lapse.client, ()):
                self._remove(lapse.client, lapse.number)

    def _remove(self, client: Client, number: int) -> None:
        del self._told[client][number]
        if self._told[client]:
            return
        del self._told[client]
        self._num_clients[client[0]] -= 1
        if not self._num_clients[client[0]]:
            del self._num_clients[client[0]]
