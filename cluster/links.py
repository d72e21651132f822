"""A gateway's links to its replicas: who is there, how loaded, and whose tokens go where.

`Links` is the one owner of every link's state and of the inboxes of running requests. One task a
replica follows its `attach` stream; a stream that breaks, stays silent or skips an output index is
a dead link: its requests fail with `LinkDown`, and it gets no work until it has said hello again.
A replica that leaves finishes what runs there, until the drain limit: the rest fails with `ReplicaLeft`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Literal

from cluster.backlog import Backlog
from cluster.backlog_reports import BacklogReports
from cluster.chores import Chores, LeaveAborts, nowhere
from cluster.credit import Wanted
from cluster.departures import Departures
from cluster.link import (
    Abort,
    Hello,
    LinkDown,
    LinkMessage,
    LinksClosed,
    NotReached,
    Report,
    StepMessage,
    SubmitReply,
    TokenLink,
)
from cluster.link_events import UNHEARD, LinkEvents
from cluster.link_reading import read_until_broken
from cluster.link_state import NEVER, LinkState
from cluster.routing import ReplicaLoad
from cluster.token_inbox import TokenInbox
from engine.counters import EngineCounters
from engine.request import Request, RequestOutput

log = logging.getLogger("headrace.gateway")

COALESCE_S = 0.004
"""Readers are woken no more often, which costs nothing where a step takes as long: with faster steps a
gateway that does not keep up sends several tokens in one event instead of falling behind."""
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0


class Links:
    """`connect(replica_id)` makes the calls to one replica; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        connect: Callable[[str], TokenLink],
        clock: Callable[[], float],
        events: LinkEvents = UNHEARD,
        *,
        drain_limit_s: float = 30.0,
        coalesce_s: float = 0.0,
        leave_aborts: LeaveAborts = nowhere,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._events = events
        self._coalesce_s = coalesce_s
        self._reports = BacklogReports(self._report_to_all)
        self._links: dict[str, LinkState] = {}
        self._listed: frozenset[str] = frozenset()
        self.is_closed = False
        self._arrived = asyncio.Event()
        """Set and replaced whenever a replica can take work that could not before."""
        self._chores = Chores(leave_aborts)
        self._departures = Departures(self._chores, drain_limit_s)

    # --- who is there ----------------------------------------------------------------------

    def set_replicas(self, replica_ids: frozenset[str]) -> None:
        """The replicas that the router lists now. One that left gets no new work and ends its running."""
        if self.is_closed:
            return
        self._listed = replica_ids
        for link in self._links.values():
            if link.replica_id not in replica_ids and not link.is_delisted:
                link.is_delisted = True
                self._chores.start(self._finish(link))
        for replica_id in replica_ids - self._links.keys():
            link = LinkState(replica_id, self._connect(replica_id))
            link.task = asyncio.ensure_future(self._follow(link))
            self._links[replica_id] = link

    def candidates(self) -> list[ReplicaLoad]:
        """Replicas that can take work: said hello and were heard within `SUSPECT_AFTER_S`."""
        now = self._clock()
        return [link.load() for link in self._links.values() if link.can_work(now)]

    def with_credit(self, wanted: Wanted | None = None) -> list[ReplicaLoad]:
        """Those of `candidates` that this may be sent to now; with nothing wanted, that something may."""
        now = self._clock()
        return [
            link.load()
            for link in self._links.values()
            if link.can_work(now) and link.balance.has_credit(wanted)
        ]

    def arrival(self) -> Coroutine[None, None, Literal[True]]:
        """Ends when a replica can take work that could not when it was asked for, or all links are closed."""
        return self._arrived.wait()

    def hellos(self) -> list[Hello]:
        """Of the replicas that can take work."""
        return [self.hello(load.replica_id) for load in self.candidates()]

    def hello(self, replica_id: str) -> Hello:
        """Raises `NotReached` if the replica is not linked."""
        hello = self._links[replica_id].hello if replica_id in self._links else None
        if hello is None:
            raise NotReached(f"replica {replica_id} is not linked")
        return hello

    def states(self) -> dict[str, EngineCounters]:
        """Last counters by replica, for gauges."""
        return {link.replica_id: link.counters for link in self._links.values() if link.counters}

    async def close(self) -> None:
        """Ends every link at once; what still runs fails with `LinksClosed`."""
        self.is_closed = True
        self._reports.close()
        self._pulse()
        tasks = [link.task for link in self._links.values() if link.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._chores.close(), return_exceptions=True)
        for link in self._links.values():
            link.take_down(LinksClosed("the gateway is ending"))
        self._links.clear()

    # --- requests --------------------------------------------------------------------------

    def book(self, replica_id: str, request: Request) -> None:
        """Takes credit, whether or not there is any, for what will be submitted there, or unbooked."""
        link = self._links[replica_id]
        link.balance.outstanding.add(request)
        link.in_flight.routed(request.request_id, request.num_uncached_tokens)

    def unbook(self, replica_id: str, request_id: str) -> None:
        link = self._links.get(replica_id)
        if link is not None:
            link.in_flight.drop(request_id)
            self._give_back(link, request_id)

    async def submit(
        self, replica_id: str, request: Request, wake: asyncio.Event
    ) -> TokenInbox | SubmitReply:
        """The request's inbox, or the reply that refuses it. Raises `LinkDown`.

        Credit is not asked for, but counted, once if it was booked. `wake` is set when the inbox has
        something to read.

        Unless an inbox is returned, nothing stays taken: a call whose fate is unknown (timed out,
        cancelled, the link broken meanwhile) is followed by an abort, which the replica remembers if
        it comes first.
        """
        hello = self.hello(replica_id)
        link = self._links[replica_id]
        self.book(replica_id, request)
        inbox = TokenInbox(request, replica_id, wake)
        link.inboxes[request.request_id] = inbox
        try:
            reply = await link.calls.submit(request)
            if link.hello is not hello:
                raise LinkDown("the link broke while the request was on its way")
        except BaseException as error:
            if isinstance(error, LinkDown):
                link.last_heard = NEVER  # no pick until it speaks again
            link.drop(request.request_id)
            self._chores.start(self._withdraw(link, request.request_id))
            raise
        if not reply.accepted:
            link.drop(request.request_id)
            self._give_back(link, request.request_id)
            return reply
        link.in_flight.accepted(request.request_id)
        return inbox

    async def warm(self, replica_id: str, request: Request) -> RequestOutput | None:
        """Has computed what nobody asked for: in no credit, no latency, and what is made is dropped.

        Its last output; None if the replica refused it or was lost. Raises `LinkDown` if it was not reached.
        """
        self.hello(replica_id)
        link = self._links[replica_id]
        ended: asyncio.Future[RequestOutput | None] = asyncio.get_running_loop().create_future()
        link.warming[request.request_id] = ended
        try:
            reply = await link.calls.submit(request)
            if not reply.accepted:
                link.end_warming(request.request_id)
            return await ended
        except BaseException:
            self._chores.start(self._chores.abort(link, Abort(request.request_id)))
            raise

    def abort(self, inbox: TokenInbox, sibling: int | None = None) -> None:
        """Stops a request, or one sibling of it, whatever its state; its inbox hears nothing more of it.

        Safe to repeat.
        """
        was_live = inbox.is_live(sibling)
        if unread := inbox.end(sibling):
            self._events.on_discarded(unread)
        link = self._links.get(inbox.replica_id)
        if link is None or inbox.request_id not in link.inboxes:
            return
        if was_live:
            self._chores.start(self._chores.abort(link, Abort(inbox.request_id, sibling)))
        if not inbox.is_live():
            link.drop(inbox.request_id)

    async def _withdraw(self, link: LinkState, request_id: str) -> None:
        """It may be there, or come: until the replica knows that nobody wants it, it counts."""
        await self._chores.abort(link, Abort(request_id))
        self._give_back(link, request_id)

    def _give_back(self, link: LinkState, request_id: str) -> None:
        link.balance.outstanding.drop(request_id)
        self._events.on_credit()

    def report(self, backlogs: Iterable[Backlog]) -> None:
        """What waits here, for the replicas to divide their windows by; they are told now and then."""
        self._reports.tell(backlogs)

    def _report_to_all(self, report: Report) -> None:
        for link in self._links.values():
            self._tell(link, report)

    def _tell(self, link: LinkState, report: Report) -> None:
        link.to_tell = report
        self._chores.start(self._chores.report(link))

    # --- one link --------------------------------------------------------------------------

    async def _follow(self, link: LinkState) -> None:
        backoff = MIN_BACKOFF_S
        while True:
            reason = await read_until_broken(link.calls.attach(), partial(self._hear, link))
            if link.hello is not None:
                backoff = MIN_BACKOFF_S
                self._tell_of_the_end(link, reason)
            link.take_down(reason)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    def _tell_of_the_end(self, link: LinkState, reason: LinkDown) -> None:
        if link.is_leaving and not link.inboxes:
            log.info("replica %s has left", link.replica_id)
        else:
            log.warning("link to replica %s is down: %s", link.replica_id, reason)
            self._events.on_lost()

    def _hear(self, link: LinkState, message: LinkMessage) -> None:
        could_work = link.can_work(self._clock())
        link.last_heard = self._clock()
        if isinstance(message, Hello):
            link.greet(message)
            self._events.on_hello(message)
            self._tell(link, self._reports.last)
        else:
            self._receive(link, message)
        if link.can_work(link.last_heard) and not could_work:
            self._pulse()
            self._events.on_credit()

    def _pulse(self) -> None:
        self._arrived.set()
        self._arrived = asyncio.Event()

    def _receive(self, link: LinkState, message: StepMessage) -> None:
        has_more_credit = link.note(message)
        if message.is_leaving and not link.is_leaving:
            link.is_leaving = True
            self._chores.start(self._departures.part(link))
        for output in message.outputs:
            # Also of one that nobody waits for any more; not of what nobody ever did.
            if output.timing is not None and output.request_id not in link.warming:
                self._events.on_timing(output.timing)
        self._events.on_discarded(link.deliver(message.outputs))
        link.announce_within(self._coalesce_s)
        if message.served:
            self._events.on_served(message.served)
        if has_more_credit:
            self._events.on_credit()

    async def _finish(self, link: LinkState) -> None:
        """It left the list."""
        await self._departures.finish(link)
        del self._links[link.replica_id]
        self.set_replicas(self._listed)  # it may have been listed again meanwhile
