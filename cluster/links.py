"""A gateway's links to its replicas: who is there, how loaded, and whose tokens go where.

`Links` is the one owner of every link's state and of the inboxes of running requests. One task a
replica follows its `attach` stream; a stream that breaks, stays silent or skips an output index is
a dead link: its requests fail with `LinkDown`, and it gets no work until it has said hello again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress

from cluster.link import (
    SUSPECT_AFTER_S,
    Abort,
    Hello,
    LinkDown,
    LinkMessage,
    SubmitReply,
    TokenLink,
)
from cluster.routing import ReplicaLoad
from cluster.token_inbox import TokenInbox
from engine.counters import EngineCounters
from engine.request import Request, Timing

log = logging.getLogger("headrace.gateway")

DEAD_AFTER_S = 5.0
"""A link silent for this long is given up and attached anew."""
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0


class _Link:
    """State of one replica's link. Only `Links` touches it."""

    def __init__(self, replica_id: str, calls: TokenLink) -> None:
        self.replica_id = replica_id
        self.calls = calls
        self.hello: Hello | None = None
        self.counters: EngineCounters | None = None
        self.last_heard = float("-inf")
        self.is_leaving = False
        self.in_flight: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        """Accepted since the last message."""
        self.taken_in: set[str] = set()
        """Accepted before the last message; the next one's counters hold them for certain."""
        self.inboxes: dict[str, TokenInbox] = {}
        self.task: asyncio.Task[None] | None = None
        self.emptied: asyncio.Event | None = None
        """Set once the last request of a leaving replica has ended."""

    def load(self) -> ReplicaLoad:
        counters = self.counters
        return ReplicaLoad(
            replica_id=self.replica_id,
            queued_tokens=counters.queued_tokens if counters else 0,
            in_flight_tokens=sum(self.in_flight.values()),
            num_running=counters.requests_running + counters.requests_waiting if counters else 0,
        )


class Links:
    """`connect(replica_id)` makes the calls to one replica; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        connect: Callable[[str], TokenLink],
        clock: Callable[[], float],
        on_discarded: Callable[[int], None] = lambda tokens: None,
        *,
        on_timing: Callable[[Timing], None] = lambda timing: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._on_discarded = on_discarded
        self._on_timing = on_timing
        self._on_lost = on_lost
        self._links: dict[str, _Link] = {}
        self._listed: frozenset[str] = frozenset()
        self._is_admitting = True
        self._chores: set[asyncio.Task[None]] = set()

    # --- who is there ----------------------------------------------------------------------

    def set_replicas(self, replica_ids: frozenset[str]) -> None:
        """The replicas that the router lists now. One that left gets no new work and ends its running."""
        self._listed = replica_ids
        for link in self._links.values():
            if link.replica_id not in replica_ids and not link.is_leaving:
                link.is_leaving = True
                self._start_chore(self._finish(link))
        for replica_id in replica_ids - self._links.keys():
            link = _Link(replica_id, self._connect(replica_id))
            link.task = asyncio.ensure_future(self._follow(link))
            self._links[replica_id] = link

    def candidates(self) -> list[ReplicaLoad]:
        """Replicas that can take work: said hello and were heard within `SUSPECT_AFTER_S`."""
        if not self._is_admitting:
            return []
        now = self._clock()
        return [
            link.load()
            for link in self._links.values()
            if link.hello is not None and not link.is_leaving and now - link.last_heard <= SUSPECT_AFTER_S
        ]

    def hello(self, replica_id: str) -> Hello:
        """Raises `LinkDown` if the replica is not linked."""
        hello = self._links[replica_id].hello if replica_id in self._links else None
        if hello is None:
            raise LinkDown(f"replica {replica_id} is not linked")
        return hello

    def states(self) -> dict[str, EngineCounters]:
        """Last counters by replica, for gauges."""
        return {link.replica_id: link.counters for link in self._links.values() if link.counters}

    def stop_admitting(self) -> None:
        """No candidates from now on; what runs goes on."""
        self._is_admitting = False

    async def close(self) -> None:
        """Ends every link at once; what still runs fails with `LinkDown`."""
        tasks = [link.task for link in self._links.values() if link.task is not None]
        for task in (*tasks, *self._chores):
            task.cancel()
        await asyncio.gather(*tasks, *self._chores, return_exceptions=True)
        for link in self._links.values():
            self._take_down(link, LinkDown("the gateway is closing"))
        self._links.clear()

    # --- requests --------------------------------------------------------------------------

    async def submit(
        self, replica_id: str, request: Request, uncached_tokens: int
    ) -> TokenInbox | SubmitReply:
        """The request's inbox, or the reply that refuses it. Raises `LinkDown`.

        Unless an inbox is returned, nothing stays taken: a call whose fate is unknown (timed out,
        cancelled, the link broken meanwhile) is followed by an abort, which the replica remembers if
        it comes first.
        """
        hello = self.hello(replica_id)
        link = self._links[replica_id]
        inbox = TokenInbox(request, replica_id)
        link.inboxes[request.request_id] = inbox
        link.in_flight[request.request_id] = uncached_tokens
        try:
            reply = await link.calls.submit(request)
            if link.hello is not hello:
                raise LinkDown("the link broke while the request was on its way")
        except BaseException:
            self._drop(link, request.request_id)
            self._start_chore(self._send_abort(link, Abort(request.request_id)))
            raise
        if not reply.accepted:
            self._drop(link, request.request_id)
            return reply
        link.acknowledged.add(request.request_id)
        return inbox

    def abort(self, inbox: TokenInbox, sibling: int | None = None) -> None:
        """Stops a request, or one sibling of it, whatever its state; its inbox hears nothing more of it.

        Safe to repeat.
        """
        was_live = inbox.is_live(sibling)
        if unread := inbox.end(sibling):
            self._on_discarded(unread)
        link = self._links.get(inbox.replica_id)
        if link is None or inbox.request_id not in link.inboxes:
            return
        if was_live:
            self._start_chore(self._send_abort(link, Abort(inbox.request_id, sibling)))
        if not inbox.is_live():
            self._drop(link, inbox.request_id)

    async def _send_abort(self, link: _Link, abort: Abort) -> None:
        with suppress(LinkDown):
            await link.calls.abort((abort,))

    def _drop(self, link: _Link, request_id: str) -> None:
        link.in_flight.pop(request_id, None)
        link.acknowledged.discard(request_id)
        link.taken_in.discard(request_id)
        link.inboxes.pop(request_id, None)
        if link.emptied is not None and not link.inboxes:
            link.emptied.set()

    def _start_chore(self, work: Coroutine[None, None, None]) -> None:
        """Work that must outlive the request that asked for it, cancelled client or not."""
        task = asyncio.ensure_future(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    # --- one link --------------------------------------------------------------------------

    async def _follow(self, link: _Link) -> None:
        backoff = MIN_BACKOFF_S
        while True:
            reason = await self._read_until_broken(link)
            if link.hello is not None:
                backoff = MIN_BACKOFF_S
                log.warning("link to replica %s is down: %s", link.replica_id, reason)
                self._on_lost()
            self._take_down(link, reason)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    async def _read_until_broken(self, link: _Link) -> LinkDown:
        stream = link.calls.attach()
        try:
            while True:
                async with asyncio.timeout(DEAD_AFTER_S):
                    message = await anext(stream)
                link.last_heard = self._clock()
                self._receive(link, message)
        except TimeoutError:
            return LinkDown(f"silent for {DEAD_AFTER_S} s")
        except StopAsyncIteration:
            return LinkDown("the replica ended the stream")
        except LinkDown as reason:
            return reason
        except Exception as error:  # whatever it is, a link that nobody follows would hang its requests
            log.exception("the link to replica %s failed", link.replica_id)
            return LinkDown(f"{type(error).__name__} while reading")
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                with suppress(Exception):  # it is broken already
                    await close()

    def _receive(self, link: _Link, message: LinkMessage) -> None:
        if isinstance(message, Hello):
            link.hello = message
            return
        link.counters = message.counters
        self._forget_reported(link)
        for output in message.outputs:
            if output.timing is not None:  # also of one that nobody waits for any more
                self._on_timing(output.timing)
            inbox = link.inboxes.get(output.request_id)
            if inbox is None or not inbox.is_live(output.sibling):
                self._on_discarded(len(output.token_ids))
                continue
            inbox.put(output)
            if not inbox.is_live():
                self._drop(link, output.request_id)

    def _forget_reported(self, link: _Link) -> None:
        """What was routed counts until the second message after its reply.

        The replica replies at once and takes the request in after the step that is running, so that
        step's message does not hold it yet.
        """
        for request_id in link.taken_in:
            link.in_flight.pop(request_id, None)
        link.taken_in, link.acknowledged = link.acknowledged, set()

    def _take_down(self, link: _Link, reason: LinkDown) -> None:
        link.hello = None
        link.counters = None
        link.in_flight.clear()
        link.acknowledged.clear()
        link.taken_in.clear()
        for request_id, inbox in tuple(link.inboxes.items()):
            self._drop(link, request_id)
            inbox.fail(reason)

    async def _finish(self, link: _Link) -> None:
        """A replica that left the list: its running requests end there, then the stream is closed."""
        if link.inboxes:
            link.emptied = asyncio.Event()
            await link.emptied.wait()
        assert link.task is not None
        link.task.cancel()
        with suppress(asyncio.CancelledError):
            await link.task
        del self._links[link.replica_id]
        self.set_replicas(self._listed)  # it may have been listed again meanwhile
