"""Redis in trouble, on purpose: a proxy in front of a real server, and what can befall the server itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

import redis

from cluster.redis_server import RedisServer
from loadtest.server_process import free_port

Value = TypeVar("Value")
Mode = Literal["pass", "refuse", "freeze"]
CHUNK_BYTES = 65536
PEER = struct.Struct("3i")
"""As the system tells who is at the other end of a unix socket: pid, uid, gid."""


class Proxy:
    """Forwards a unix socket, or a port of the loopback, to a server; it lives in a thread of its own.

    Calls return once the trouble is there. Connections that are open get it too.
    """

    def __init__(self, upstream_url: str, socket: Path | None = None) -> None:
        self._upstream_url = upstream_url
        self._socket = socket
        self._mode: Mode = "pass"
        self._delay_s = 0.0
        self._refused_pid = 0
        self._writers: dict[asyncio.StreamWriter, int] = {}
        """With the process at the other end; 0 where nobody asks."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redis-proxy", daemon=True)
        self._thread.start()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server = self._run(self._listen())

    @property
    def url(self) -> str:
        if self._socket is None:
            return f"redis://127.0.0.1:{self.port}"
        return f"unix://{quote(str(self._socket))}"

    def passes(self) -> None:
        """All is well again; what was held back is delivered now."""
        self._set("pass", 0.0)

    def refuse(self) -> None:
        """Open connections end, new ones are closed at once."""
        self._set("refuse", 0.0)
        self.cut()

    def refuse_only(self, pid: int) -> None:
        """As `refuse`, for one process that connects through a unix socket."""

        def change() -> None:
            self._refused_pid = pid
            for writer, peer in self._writers.items():
                if peer == pid:
                    writer.transport.abort()

        self._do(change)

    def freeze(self) -> None:
        """Connections are accepted and bytes swallowed; nothing comes back until `passes`."""
        self._set("freeze", 0.0)

    def delay(self, seconds: float) -> None:
        """Each answer comes that much later."""
        self._set("pass", seconds)

    def cut(self) -> None:
        """Open connections end; new ones pass."""
        self._do(lambda: [writer.transport.abort() for writer in self._writers])

    def switch_to(self, upstream_url: str) -> None:
        """New connections go to another server; open ones end."""
        self._upstream_url = upstream_url
        self.cut()

    def close(self) -> None:
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _set(self, mode: Mode, delay_s: float) -> None:
        def change() -> None:
            self._mode, self._delay_s, self._refused_pid = mode, delay_s, 0
            if mode == "freeze":
                self._flowing.clear()
            else:
                self._flowing.set()

        self._do(change)

    def _do(self, change: Callable[[], object]) -> None:
        async def call() -> None:
            change()

        self._run(call())

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _listen(self) -> asyncio.Server:
        if self._socket is not None:
            return await asyncio.start_unix_server(self._accept, self._socket)
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _shut(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers[writer] = pid = _peer_pid(writer)
        try:
            if self._mode != "refuse" and (not pid or pid != self._refused_pid):
                await self._join(reader, writer)
        except asyncio.CancelledError:
            pass  # we close; asyncio's streams would report a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            del self._writers[writer]
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await self._flowing.wait()
            from_server, server = await _connect(self._upstream_url)
            self._writers[server] = 0
            ways = [
                asyncio.ensure_future(self._pump(reader, server, is_answer=False)),
                asyncio.ensure_future(self._pump(from_server, writer, is_answer=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                del self._writers[server]
                server.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if is_answer and self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()


class TroubledRedis:
    """A real server that can be stopped, emptied, filled and replaced, behind a `Proxy` at `url`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._num_servers = 0
        self._servers: list[RedisServer] = []
        self.server = self._start()
        self.proxy = Proxy(self.server.url, home / "proxy.sock")

    @property
    def url(self) -> str:
        return self.proxy.url

    def admin(self) -> redis.Redis:
        """A client of the server itself, past the proxy."""
        return redis.Redis.from_url(self.server.url)

    def stop_process(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)

    def continue_process(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Its last second is lost with it; connections end."""
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        self._servers.remove(self.server)

    def restart_empty(self) -> None:
        """After `kill`: another server, with no data, in its place."""
        self.server = self._start()
        self.proxy.switch_to(self.server.url)

    def flush_scripts(self) -> None:
        with self.admin() as admin:
            admin.script_flush()

    def forbid(self, command: str) -> None:
        with self.admin() as admin:
            admin.execute_command("ACL", "SETUSER", "default", f"-{command}")

    def allow(self, command: str) -> None:
        with self.admin() as admin:
            admin.execute_command("ACL", "SETUSER", "default", f"+{command}")

    def fill_memory(self) -> None:
        """From now on nothing that takes memory may be written."""
        with self.admin() as admin:
            admin.config_set("maxmemory", 1)

    def free_memory(self) -> None:
        with self.admin() as admin:
            admin.config_set("maxmemory", 0)

    def add_replica(self) -> Replica:
        """One that follows the server, until it is made to lag and takes its place."""
        port = free_port()
        with self.admin() as admin:
            admin.config_set("bind", "127.0.0.1")
            admin.config_set("port", port)
            admin.config_set("repl-diskless-sync-delay", 0)
        return Replica(self, self._start(), port)

    def fail_over_to(self, server: RedisServer) -> None:
        self.kill()
        self.server = server
        self.proxy.switch_to(server.url)

    def close(self) -> None:
        self.proxy.close()
        for server in self._servers:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)  # asked to leave, it would wait for its replica
            server.stop()

    def _start(self) -> RedisServer:
        self._num_servers += 1
        home = self._home / f"server-{self._num_servers}"
        shutil.rmtree(home, ignore_errors=True)
        server = RedisServer.start(home, home)
        self._servers.append(server)
        return server


class Replica:
    """A server that follows another through a proxy of its own, which is how it can be made to lag."""

    def __init__(self, troubled: TroubledRedis, server: RedisServer, port: int) -> None:
        self._troubled = troubled
        self._server = server
        self._link = Proxy(f"redis://127.0.0.1:{port}")
        with self._admin() as admin:
            admin.execute_command("REPLICAOF", "127.0.0.1", self._link.port)

    @property
    def is_in_step(self) -> bool:
        with self._admin() as admin, self._troubled.admin() as primary:
            here, there = admin.info("replication"), primary.info("replication")
        return bool(
            here["master_link_status"] == "up" and here["slave_repl_offset"] == there["master_repl_offset"]
        )

    def wait_until_in_step(self, within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not self.is_in_step:
            assert time.monotonic() < deadline, f"the replica is not in step after {within_s} s"
            time.sleep(0.05)

    def lag(self) -> None:
        """What is written from now on does not come."""
        self._link.freeze()

    def take_over(self) -> None:
        """The server dies, and this is in its place, read-only."""
        self._link.close()
        self._troubled.fail_over_to(self._server)

    def promote(self) -> None:
        with self._admin() as admin:
            admin.execute_command("REPLICAOF", "NO", "ONE")

    def _admin(self) -> redis.Redis:
        return redis.Redis.from_url(self._server.url)


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await asyncio.open_unix_connection(unquote(parts.path))
    return await asyncio.open_connection(parts.hostname, parts.port)


def _peer_pid(writer: asyncio.StreamWriter) -> int:
    """Of who has connected through a unix socket; 0 for a port."""
    pid, _, _ = PEER.unpack(
        writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    )
    assert isinstance(pid, int)
    return pid
