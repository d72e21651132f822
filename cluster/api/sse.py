"""A server-sent event stream that always ends: complete, with one error event, or with the client.

Until its first byte an error is a true HTTP status. Status and headers are committed with the first
frame, or after `Timings.commit_after_s` of waiting; from then on silence is broken by comments. After
the commit an error is one event `data: {"error": …}` and the end: `[DONE]` follows complete answers only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.api.errors import ApiError, deadline_exceeded, internal_error
from cluster.api.outbox import Outbox
from cluster.api.pace import Due, StreamPace
from cluster.api.request_context import RequestContext
from cluster.api.shapes import COMMENT, frame
from cluster.api.unexpected import log_unexpected
from cluster.api.waiting import client_left, end_all, unless

SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies that know it pass each event on at once
}


class _TooSlow(Exception):
    """The client does not read fast enough."""


class SseResponse(Response):
    """Sends `frames` (never empty) and ends them if the client leaves, does not read, or time is up.

    `headers_now` is asked when the headers are committed. Raises `ApiError` before that, and
    `ClientDisconnect` whenever the client left or was given up.
    """

    def __init__(
        self,
        context: RequestContext,
        frames: AsyncGenerator[bytes],
        headers_now: Callable[[], Mapping[str, str]],
    ) -> None:
        self.status_code = 200
        self.background = None
        self._request_id = context.request_id
        self._clock = context.services.clock
        self._sleep = context.services.sleep
        self._timings = context.services.timings
        self._frames = frames
        self._headers_now = headers_now
        self._pace = StreamPace(self._timings, arrived=context.arrived, deadline=context.deadline)
        self._outbox = Outbox(self._timings.max_unsent_bytes)
        self._is_committed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pump = asyncio.create_task(self._pump(given_up))
        watch = asyncio.create_task(self._watch(pump, given_up))
        writer = asyncio.create_task(self._write(send))
        left = asyncio.create_task(client_left(receive))
        try:
            await asyncio.wait([writer, left, given_up], return_when=asyncio.FIRST_COMPLETED)
            if not writer.done():
                raise ClientDisconnect
            writer.result()
        finally:
            await end_all(pump, watch, writer, left)

    async def _pump(self, given_up: asyncio.Future[None]) -> None:
        """Fills the outbox. Cancelled, it closes `frames`, which aborts the generation."""
        try:
            async with aclosing(self._frames) as frames:
                async for data in frames:
                    self._outbox.put(data)
                    if not self._outbox.has_room:
                        await self._room()
        except ApiError as error:
            self._outbox.close(error)
        except _TooSlow:
            _give_up(given_up)
        except Exception as error:
            log_unexpected(error, self._request_id)
            self._outbox.close(internal_error())
        else:
            self._outbox.close()

    async def _room(self) -> None:
        too_slow = self._sleep(self._timings.overfull_s)
        await unless(self._outbox.wait_for_room(), (too_slow, _TooSlow()))

    async def _watch(self, pump: asyncio.Task[None], given_up: asyncio.Future[None]) -> None:
        """Does what is due though nothing came."""
        while True:
            await self._sleep(self._pace.next_look(self._clock()))
            due = self._pace.due(self._clock())
            if due is Due.GIVE_UP:
                _give_up(given_up)
                return
            if due is Due.EXPIRE:
                pump.cancel()
                self._outbox.close(deadline_exceeded())
            elif due is not None:
                self._outbox.put(COMMENT)

    async def _write(self, send: Send) -> None:
        while (data := await self._outbox.take()) is not None:
            await self._send(send, data)
            self._outbox.sent(len(data))
        error = self._outbox.error
        if error is not None:
            if not self._is_committed:
                raise error
            await self._send(send, frame(error.body()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        self._pace.begin_send(self._clock())
        try:
            if not self._is_committed:
                self._is_committed = True
                headers = MutableHeaders({**SSE_HEADERS, **self._headers_now()})
                await send({"type": "http.response.start", "status": 200, "headers": headers.raw})
            await send({"type": "http.response.body", "body": data, "more_body": True})
        except OSError:
            raise ClientDisconnect from None
        self._pace.end_send(self._clock())


def _give_up(given_up: asyncio.Future[None]) -> None:
    if not given_up.done():
        given_up.set_result(None)
