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
from typing import NamedTuple

from cluster.autoscaling.trend import MEMORY_S
from cluster.waiting.promises import EARLY_S, GRACE_S, Client

MAX_KEPT = 20_000
"""Any more count again when they come back."""


class _Told(NamedTuple):
    due_s: float
    lapses_s: float
    counted_s: float


class TurnedAway:
    """Owns who stands outside. Those who ask the same are alike: who comes is the one that is due first."""

    def __init__(self) -> None:
        self._told: dict[Client, list[_Told]] = {}
        """Heaps."""
        self._num_clients: defaultdict[str, int] = defaultdict(int)
        """By tenant."""
        self._lapses: list[tuple[float, Client]] = []
        """A heap; those that came back are in it, too."""

    def add(self, client: Client, *, due_s: float, counted_s: float) -> None:
        """One that was told to come at `due_s` and was counted at `counted_s`."""
        if len(self._lapses) >= MAX_KEPT:
            return
        if client not in self._told:
            self._told[client] = []
            self._num_clients[client[0]] += 1
        lapses_s = min(due_s + GRACE_S, counted_s + MEMORY_S)
        heappush(self._told[client], _Told(due_s, lapses_s, counted_s))
        heappush(self._lapses, (lapses_s, client))

    def take_back(self, client: Client, now: float, *, says_so: bool) -> float | None:
        """When one that comes now was counted; None: it counts now."""
        while self._lapses and self._lapses[0][0] <= now:
            self._forget_lapsed(heappop(self._lapses)[1], now)
        if client not in self._told:
            return now if says_so and client[0] in self._num_clients else None
        if not says_so and now < self._told[client][0].due_s - EARLY_S:
            return None
        told = heappop(self._told[client])
        self._forget_lapsed(client, now)
        return told.counted_s

    def _forget_lapsed(self, client: Client, now: float) -> None:
        """Of this client, and the client itself if it has no more."""
        told = self._told.get(client)
        if told is None:
            return
        while told and told[0].lapses_s <= now:
            heappop(told)
        if not told:
            del self._told[client]
            self._num_clients[client[0]] -= 1
            if not self._num_clients[client[0]]:
                del self._num_clients[client[0]]
