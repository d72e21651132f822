"""Who was told to come back, and when."""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

from cluster.waiting.arrival import Arrival
from cluster.waiting.expiry_heap import ExpiryHeap
from tenants.fair_queue import FairQueue, Queued, Share

EARLY_S = 0.5
"""A client that comes so much before its time is on time."""
GRACE_S = 10.0
"""A client that has not come by so much after its time has given up."""
MAX_PROMISES = 10_000

Client = tuple[str, bytes]
"""Tenant, and what its request is known by."""


class Promise(NamedTuple):
    entry: Queued
    """What will come; its id is the promise's own."""
    client: Client
    due_s: float

    def is_due(self, now: float) -> bool:
        return now >= self.due_s - EARLY_S


class Promises:
    """Owns the promises that are open: neither kept, nor replaced, nor past their time.

    `line` is the gateway's queue as it would be if all of them were kept now: `GatewayQueue` tells it who
    comes and goes, and nobody's turn comes in it.
    """

    def __init__(self) -> None:
        self.line = FairQueue()
        self._numbers = count()
        self._open: dict[str, Promise] = {}
        self._of_client: dict[Client, dict[str, Promise]] = {}
        self._last_place_s: dict[Share, float] = {}
        self._lapsing = ExpiryHeap()

    def __len__(self) -> int:
        return len(self._open)

    def make(self, arrival: Arrival, *, place_s: float, due_s: float) -> None:
        """`place_s`: when there is room for it; `due_s`: when it was told to come. Not if there are too many already."""
        if len(self._open) >= MAX_PROMISES:
            return
        promise_id = f"promise {next(self._numbers)}"
        promise = Promise(arrival.queued._replace(entry_id=promise_id), _client(arrival), due_s)
        self._open[promise_id] = promise
        self._of_client.setdefault(promise.client, {})[promise_id] = promise
        self._lapsing.add(promise_id, due_s + GRACE_S)
        self.line.push(promise.entry)
        self._last_place_s[arrival.share] = place_s

    def last_place_s(self, share: Share) -> float:
        """Of the promises made to it; minus infinity if there is none to wait for."""
        return self._last_place_s.get(share, -math.inf)

    def of(self, arrival: Arrival) -> Promise | None:
        """The oldest that was made to this client."""
        promises = self._of_client.get(_client(arrival))
        return next(iter(promises.values())) if promises else None

    def close(self, promise: Promise) -> None:
        """It is kept, or another one is made in its place."""
        promise_id = promise.entry.entry_id
        del self._open[promise_id]
        self._lapsing.discard(promise_id)
        self.line.remove(promise_id)
        of_client = self._of_client[promise.client]
        del of_client[promise_id]
        if not of_client:
            del self._of_client[promise.client]

    def forget_lapsed(self, now: float) -> None:
        if any(at <= now for at in self._last_place_s.values()):
            self._last_place_s = {share: at for share, at in self._last_place_s.items() if at > now}
        for promise_id in self._lapsing.take_due(now):
            self.close(self._open[promise_id])


def _client(arrival: Arrival) -> Client:
    return arrival.share.tenant_id, arrival.claim
