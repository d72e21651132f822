"""The bench's HTTP/1.1 client: one connection, hand-written requests, nothing that is not needed.

An ordinary client takes more CPU than the server that it measures. This one keeps what comes and when;
what it says is read when the run is over (`answers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from httptools import HttpParserError, HttpResponseParser

from loadtest.gateway_bench.received import Received


class ConnectionBroken(Exception):
    """The server closed the connection, or what it sent is no HTTP."""


class Connection(asyncio.Protocol):
    """One kept-alive connection to a loopback port. Owns the answer that is under way; one at a time.

    A server may close it between two answers, as a proxy does at its reload: then it is opened anew.
    """

    def __init__(self, port: int, clock: Callable[[], float]) -> None:
        self._port = port
        self._clock = clock
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None]
        """Done once the transport is gone."""
        self._answer = Received(0.0)
        self._whole: asyncio.Future[Received] | None = None
        self._now = 0.0

    async def exchange(self, request: bytes) -> Received:
        """The whole answer to `request`. Raises `ConnectionBroken`."""
        transport = self._transport
        if transport is None or transport.is_closing():
            await self.close()
            transport = await self._open()
        self._whole = asyncio.get_running_loop().create_future()
        self._answer = Received(self._clock())
        transport.write(request)
        return await self._whole

    async def _open(self) -> asyncio.Transport:
        self._parser = HttpResponseParser(self)
        loop = asyncio.get_running_loop()
        self._lost = loop.create_future()
        try:
            self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        except OSError as error:
            raise ConnectionBroken(f"nothing listens on port {self._port}: {error.strerror}") from None
        return self._transport

    async def close(self) -> None:
        """Returns once it is closed."""
        if self._transport is not None:
            self._end()
            await self._lost

    # --- asyncio's calls ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(f"what came is no HTTP: {error}")
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the connection was closed before the answer's end")
        self._lost.set_result(None)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _fail(self, reason: str) -> None:
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(ConnectionBroken(reason))

    # --- the parser's calls ------------------------------------------------------------------

    def on_body(self, part: bytes) -> None:
        self._answer.parts.append(part)
        self._answer.times.append(self._now)

    def on_message_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self._end()
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(self._answer)
