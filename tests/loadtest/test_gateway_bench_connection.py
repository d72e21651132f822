"""The bench's HTTP connection: kept while the server keeps it, opened anew when it does not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from loadtest.gateway_bench.connection import Connection, ConnectionBroken


class ScriptedServer:
    """Answers each request with the next of `replies`; None closes the connection instead."""

    def __init__(self, replies: list[bytes | None]) -> None:
        self._replies = iter(replies)
        self.num_connections = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        while await reader.readline():
            reply = next(self._replies)
            if reply is None:
                break
            writer.write(reply)
            if b"Connection: close" in reply:
                break
        writer.close()


@asynccontextmanager
async def serving(*replies: bytes | None) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(list(replies))
    server = await asyncio.start_server(scripted.handle, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    async with server:
        yield scripted


def ticks() -> Callable[[], float]:
    """A clock that is one second later at each look."""
    count = itertools.count(1)
    return lambda: float(next(count))


REQUEST = b"GET\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"


async def test_parts_status_and_times_are_kept() -> None:
    async with serving(CHUNKED) as server:
        connection = Connection(server.port, ticks())
        answer = await connection.exchange(REQUEST)
        await connection.close()
    assert (answer.status, answer.parts) == (404, [b"ab", b"cde"])
    assert answer.sent_at == 1.0
    assert len(answer.times) == 2
    assert all(at > 1.0 for at in answer.times)


async def test_one_connection_carries_many_answers() -> None:
    async with serving(PLAIN, CHUNKED, PLAIN) as server:
        connection = Connection(server.port, ticks())
        parts = [(await connection.exchange(REQUEST)).parts for _ in range(3)]
        await connection.close()
    assert parts == [[b"hi"], [b"ab", b"cde"], [b"hi"]]
    assert server.num_connections == 1


async def test_a_server_that_says_close_is_asked_on_a_new_connection() -> None:
    """At once: its end of the connection may not have been heard of yet."""
    async with serving(CLOSING, CLOSING, PLAIN) as server:
        connection = Connection(server.port, ticks())
        for _ in range(3):
            assert (await connection.exchange(REQUEST)).parts == [b"hi"]
        await connection.close()
    assert server.num_connections == 3


@pytest.mark.parametrize("reply", [None, CHUNKED[:-5] + b"\r\n", b"no HTTP\r\n\r\n"])
async def test_an_answer_that_does_not_end_is_broken(reply: bytes | None) -> None:
    replies = [reply] if reply is None else [reply, None]
    async with serving(*replies) as server:
        connection = Connection(server.port, ticks())
        with pytest.raises(ConnectionBroken):
            async with asyncio.timeout(10):
                await connection.exchange(REQUEST + (b"GET\n" if reply else b""))
        await connection.close()
