"""A scripted server on a loopback port: it answers in exactly the bytes that a test wrote."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'


class Reply(NamedTuple):
    """`pieces` are written one by one; `is_cut` breaks the connection after them, `hangs` keeps it.

    `replica` is the one that the headers name, if any.
    """

    pieces: tuple[bytes, ...]
    status: int = 200
    is_cut: bool = False
    hangs: bool = False
    replica: str = ""


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def streamed(texts: list[str], *, prompt_tokens: int = 5, cached_tokens: int = 0) -> Reply:
    """A whole completion, one event a text, as one token each."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(texts),
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    return Reply(
        (
            *(event({"choices": [{"text": text, "finish_reason": None}], "usage": None}) for text in texts),
            event({"choices": [{"text": "", "finish_reason": "length"}], "usage": None}),
            event({"choices": [], "usage": usage}),
            event(b"[DONE]"),
        )
    )


class FakeApi:
    """Keeps what it was asked: (path, headers, body) of each request, in order of arrival."""

    def __init__(self, answer: Callable[[dict], Reply], models: Reply) -> None:
        self._answer = answer
        self._models = models
        self.url = ""
        self.asked: list[tuple[str, dict[str, str], dict]] = []

    @property
    def bodies(self) -> list[dict]:
        return [body for path, _, body in self.asked if path != "/v1/models"]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        path = head[0].split()[1]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        self.asked.append((path, headers, body))
        reply = self._models if path == "/v1/models" else self._answer(body)
        named = f"X-Headrace-Replica: {reply.replica}\r\n" if reply.replica else ""
        writer.write(f"HTTP/1.1 {reply.status} Said\r\n{named}Transfer-Encoding: chunked\r\n\r\n".encode())
        for piece in reply.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if reply.hangs:
            await reader.read()
        if reply.is_cut or reply.hangs:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@contextmanager
def fake_api(
    answer: Callable[[dict], Reply],
    models: Reply = Reply((MODELS,)),  # noqa: B008  a value
) -> Iterator[FakeApi]:
    """Runs in a thread of its own, so that a command under test may own the main one's event loop."""
    api = FakeApi(answer, models)
    started = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        server = await asyncio.start_server(api.handle, "127.0.0.1", 0)
        api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await done.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    try:
        yield api
    finally:
        stop[0]()
        thread.join()
