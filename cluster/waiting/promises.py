"""Who was told to come back, and when."""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

from cluster.waiting.arrival import Arrival
from cluster.waiting.decayed_mean import DecayedMean
from tenants.queued import Queued, Share, Work
from tenants.ranking import Ranking

EARLY_S = 0.5
"""A client that comes so much before its time is on time."""
GRACE_S = 10.0
"""A client that has not come by so much after its time has given up."""
MAX_PROMISES = 10_000
RETURN_FADES = 1 / 16
"""The part of a tenant's clients that come back weighs its past so much less at each that did, or did not."""

Client = tuple[str, bytes]
"""Tenant, and what its request is known by."""


class Promise(NamedTuple):
    entry: Queued
    """What will come; its id is the promise's own."""
    client: Client
    due_s: float

    def is_due(self, now: float) -> bool:
        return now >= self.due_s - EARLY_S


class Expected(NamedTuple):
    """Who of one share will come back, on the mean."""

    work: Work
    num_requests: int
    """Whole ones: half a request fills no place."""


NOBODY = Expected(Work(), 0)


class _Outside:
    """What of one share stands in the line outside, and which part of it has come when it was told of late.

    All are thought to, until some did not.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        self.last_place_s = -math.inf
        self._tokens = 0.0
        self._seats = 0
        self._coming = DecayedMean(1.0, 1.0)

    @property
    def expected(self) -> Expected:
        part = self._coming.value
        work = Work(part * self._tokens, part * self._seats)
        return Expected(work, round(part * self.num_requests))

    def add(self, entry: Queued, place_s: float) -> None:
        self._tokens += entry.input_service
        self._seats += entry.num_siblings
        self.num_requests += 1
        self.last_place_s = place_s

    def remove(self, entry: Queued, *, has_come: bool) -> None:
        self._tokens -= entry.input_service
        self._seats -= entry.num_siblings
        self.num_requests -= 1
        self._coming.fade(1 - RETURN_FADES)
        self._coming.add(float(has_come), 1.0)


class Promises:
    """Owns the promises that are open: neither kept, nor replaced, nor past their time."""

    def __init__(self) -> None:
        self._numbers = count()
        self._open: dict[str, Promise] = {}
        self._of_client: dict[Client, dict[str, Promise]] = {}
        self._outside: dict[Share, _Outside] = {}
        self._lapsing = Ranking()
        """By when their clients will have given up, in seconds."""

    def __len__(self) -> int:
        return len(self._open)

    def make(self, arrival: Arrival, *, place_s: float, due_s: float) -> None:
        """`place_s`: when there is room; `due_s`: when it was told to come. Not above `MAX_PROMISES`."""
        if len(self._open) >= MAX_PROMISES:
            return
        promise_id = str(next(self._numbers))
        promise = Promise(arrival.queued._replace(entry_id=promise_id), _client(arrival), due_s)
        self._open[promise_id] = promise
        self._of_client.setdefault(promise.client, {})[promise_id] = promise
        self._outside.setdefault(arrival.share, _Outside()).add(promise.entry, place_s)
        self._lapsing.put(promise_id, (due_s + GRACE_S,))

    def of(self, arrival: Arrival) -> Promise | None:
        """The oldest that was made to this client."""
        promises = self._of_client.get(_client(arrival))
        return next(iter(promises.values())) if promises else None

    def expected(self, share: Share) -> Expected:
        """What of it is still to come, if as many do as of late."""
        outside = self._outside.get(share)
        return NOBODY if outside is None else outside.expected

    def last_place_s(self, share: Share) -> float:
        """The latest that it was given; minus infinity: none of it is still to come."""
        outside = self._outside.get(share)
        return -math.inf if outside is None else outside.last_place_s

    def close(self, promise: Promise) -> None:
        """Its client has come: it is kept, or another one is made in its place."""
        self._close(promise, has_come=True)

    def _close(self, promise: Promise, *, has_come: bool) -> None:
        promise_id, share = promise.entry.entry_id, promise.entry.share
        del self._open[promise_id]
        self._lapsing.discard(promise_id)
        _remove(self._of_client, promise.client, promise_id)
        self._outside[share].remove(promise.entry, has_come=has_come)
        if not self._outside[share].num_requests:
            del self._outside[share]

    def forget_lapsed(self, now: float) -> None:
        for promise_id in self._lapsing.take_to(now):
            self._close(self._open[promise_id], has_come=False)


def _client(arrival: Arrival) -> Client:
    return arrival.share.tenant_id, arrival.claim


def _remove(of_client: dict[Client, dict[str, Promise]], client: Client, promise_id: str) -> None:
    del of_client[client][promise_id]
    if not of_client[client]:
        del of_client[client]
