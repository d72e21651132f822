"""What a gateway knows of one replica and has running there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cluster.admission_windows import full_window
from cluster.credit import Balance, Credit
from cluster.in_flight_load import InFlightLoad
from cluster.link import SUSPECT_AFTER_S, Hello, LinkDown, Report, StepMessage, TokenLink
from cluster.routing import ReplicaLoad
from cluster.token_inbox import TokenInbox
from engine.counters import EngineCounters
from engine.request import RequestOutput

NEVER = float("-inf")


class LinkState:
    """State of one replica's link. Only `Links` touches it."""

    def __init__(self, replica_id: str, calls: TokenLink) -> None:
        self.replica_id = replica_id
        self.calls = calls
        self.hello: Hello | None = None
        self.balance = Balance()
        self._full_window = Credit(1, 1)
        self.counters: EngineCounters | None = None
        self.last_heard = NEVER
        self.is_delisted = False
        """The router does not list it any more."""
        self.is_leaving = False
        """It said so itself."""
        self.to_tell = Report(())
        self.told: Report | None = Report(())
        """The report that it has; None: nobody knows which one."""
        self.is_being_told = False
        self.in_flight = InFlightLoad()
        self.inboxes: dict[str, TokenInbox] = {}
        self.warming: dict[str, asyncio.Future[RequestOutput | None]] = {}
        """What nobody asked for, by its id: each ends with its last output, or None if there will be none."""
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

    def greet(self, hello: Hello) -> None:
        """A new stream: nothing runs there, nothing is reported, and nothing is granted yet."""
        self.hello = hello
        self.told = Report(())
        self.balance = Balance(hello.max_num_batched_tokens)
        self._full_window = full_window(hello.max_num_batched_tokens, hello.max_num_seqs)

    def note(self, message: StepMessage) -> bool:
        """Takes in what a message says of the replica. Whether there is more credit than before."""
        self.counters = message.counters
        self.in_flight.reported()
        return self.balance.hear(message.outputs, message.credit)

    def load(self) -> ReplicaLoad:
        num_seats = 0 if self.hello is None else self.hello.max_num_seqs
        part = self.balance.part_of(self._full_window)
        return ReplicaLoad.of(self.replica_id, num_seats, self.counters, self.in_flight.tokens, part)

    def deliver(self, outputs: Iterable[RequestOutput]) -> int:
        """To their inboxes. How many tokens nobody waits for. Raises `LinkDown` on a gap."""
        num_discarded = 0
        for output in outputs:
            inbox = self.inboxes.get(output.request_id)
            if inbox is None or not inbox.is_live(output.sibling):
                num_discarded += len(output.token_ids)
                if output.finish_reason is not None:
                    self.end_warming(output.request_id, output)
                continue
            inbox.put(output)
            self.fresh.add(inbox)
            if not inbox.is_live():
                self.drop(output.request_id)
        return num_discarded

    def end_warming(self, request_id: str, last: RequestOutput | None = None) -> None:
        """If it is of a warming."""
        ended = self.warming.pop(request_id, None)
        if ended is not None and not ended.done():
            ended.set_result(last)

    def announce_within(self, seconds: float) -> None:
        """Wakes the readers of all that came, so long after they were woken last."""
        if not self.fresh or self.announcing is not None:
            return
        loop = asyncio.get_running_loop()
        due = self.announced_at + seconds
        if loop.time() >= due:
            self.announce(loop.time())
        else:
            self.announcing = loop.call_at(due, self.announce, due)

    def announce(self, now: float) -> None:
        """Wakes the readers of all that came."""
        for inbox in self.fresh:
            inbox.announce()
        self.fresh.clear()
        self.announced_at = now
        self.announcing = None

    def drop(self, request_id: str) -> None:
        self.in_flight.drop(request_id)
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
        self.balance = Balance()
        self.counters = None
        self.is_leaving = False
        self.in_flight.clear()
        for request_id in list(self.warming):
            self.end_warming(request_id)
        self.fail(reason)
