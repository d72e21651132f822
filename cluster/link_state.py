"""What a gateway knows of one replica and has running there."""

from __future__ import annotations

import asyncio

from cluster.link import SUSPECT_AFTER_S, Hello, LinkDown, TokenLink
from cluster.routing import ReplicaLoad
from cluster.token_inbox import TokenInbox
from engine.counters import EngineCounters

NEVER = float("-inf")


class LinkState:
    """State of one replica's link. Only `Links` touches it."""

    def __init__(self, replica_id: str, calls: TokenLink) -> None:
        self.replica_id = replica_id
        self.calls = calls
        self.hello: Hello | None = None
        self.counters: EngineCounters | None = None
        self.last_heard = NEVER
        self.is_delisted = False
        """The router does not list it any more."""
        self.is_leaving = False
        """It said so itself."""
        self.in_flight: dict[str, int] = {}
        """Uncached tokens of what was routed and is not in the counters yet."""
        self.acknowledged: set[str] = set()
        """Accepted since the last message."""
        self.taken_in: set[str] = set()
        """Accepted before the last message; the next one's counters hold them for certain."""
        self.inboxes: dict[str, TokenInbox] = {}
        self.fresh: set[TokenInbox] = set()
        """What their readers were not told of yet."""
        self.announced_at = NEVER
        self.announcing: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.emptied = asyncio.Event()
        """Set whenever the last request ends."""

    def can_work(self, now: float) -> bool:
        is_there = self.hello is not None and not self.is_delisted and not self.is_leaving
        return is_there and now - self.last_heard <= SUSPECT_AFTER_S

    def load(self) -> ReplicaLoad:
        return ReplicaLoad.of(self.replica_id, self.counters, self.in_flight)

    def forget_reported(self) -> None:
        """What was routed counts until the second message after its reply.

        The replica replies at once and takes the request in after the step that is running, so that
        step's message does not hold it yet.
        """
        for request_id in self.taken_in:
            self.in_flight.pop(request_id, None)
        self.taken_in, self.acknowledged = self.acknowledged, set()

    def announce(self, now: float) -> None:
        """Wakes the readers of all that came."""
        for inbox in self.fresh:
            inbox.announce()
        self.fresh.clear()
        self.announced_at = now
        self.announcing = None

    def drop(self, request_id: str) -> None:
        self.in_flight.pop(request_id, None)
        self.acknowledged.discard(request_id)
        self.taken_in.discard(request_id)
        self.inboxes.pop(request_id, None)
        if not self.inboxes:
            self.emptied.set()

    def fail(self, reason: LinkDown) -> list[str]:
        """Ends all that runs there; the ids."""
        failed = list(self.inboxes)
        for request_id in failed:
            inbox = self.inboxes[request_id]
            self.drop(request_id)
            inbox.fail(reason)
        return failed

    def take_down(self, reason: LinkDown) -> None:
        self.hello = None
        self.counters = None
        self.is_leaving = False
        self.in_flight.clear()
        self.acknowledged.clear()
        self.taken_in.clear()
        self.fail(reason)
