"""A `headrace serve`, or another server, of our own on a free loopback port, taken down whatever happens."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from cluster.run_dir import RunDir
from cluster.settings import ENV_PREFIX
from cluster.supervisor import die_with_parent

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 45.0
LIFT_TIMEOUT_S = 15.0
READY = "Ready after"
"""What `headrace serve` prints once every replica is there; `/ready` asks for one of them only."""
_PORTS = range(20_000, 30_000)
"""Below those that the system gives to outgoing connections."""
_POLL_S = 0.1
_SHOWN_LINES = 5


class CannotStart(Exception):
    """A server did not come up; its last words."""


class Server(NamedTuple):
    """A running server on loopback. `key` is what requests to it need."""

    port: int
    key: str = "none"


@contextmanager
def served(flags: Sequence[str]) -> Iterator[Server]:
    """Serves with these flags, and no others from the environment. Raises `CannotStart`."""

    def arguments(port: int, state_dir: Path) -> list[str]:
        return ["-m", "headrace", "serve", *flags, f"--port={port}", f"--state-dir={state_dir}"]

    with running(arguments, READY) as (port, state_dir):
        lift_limits(f"http://127.0.0.1:{port}", (state_dir / "admin.key").read_text().strip())
        yield Server(port, (state_dir / "demo.key").read_text().strip())


def lift_limits(url: str, admin_key: str) -> None:
    """The demo tenant may take what it likes from now on, or, on another gateway, within a second.

    A start takes all cores, and a busy record answers 503: it is asked again, as that answer says.
    """
    path, headers = f"{url}/admin/v1/tenants/demo", {"Authorization": f"Bearer {admin_key}"}
    deadline = time.monotonic() + LIFT_TIMEOUT_S
    while True:
        answer = httpx.patch(path, json={"tier": "unlimited"}, headers=headers, trust_env=False)
        if answer.status_code != 503 or time.monotonic() > deadline:
            answer.raise_for_status()
            return
        time.sleep(float(answer.headers.get("retry-after", _POLL_S)))


@contextmanager
def running(arguments: Callable[[int, Path], Sequence[str]], ready: str) -> Iterator[tuple[int, Path]]:
    """A Python process with a port and a folder of its own, once its output holds `ready`.

    The folder may be a state directory. Raises `CannotStart`.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder, port = Path(name), free_port()
        log = folder / "output.log"
        process = _start(arguments(port, folder), log)
        try:
            _await_ready(process, log, ready)
            yield port, folder
        finally:
            _stop(process)
            RunDir.remove(folder)


def without_settings() -> dict[str, str]:
    """Our environment without what would set flags of our commands."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}


def _start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=without_settings(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _await_ready(process: subprocess.Popen[bytes], log: Path, ready: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while ready not in (said := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            last = said.strip().splitlines()[-_SHOWN_LINES:]
            raise CannotStart("a server did not start: " + " / ".join(last))
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks once; who is asked twice ends at once."""
    for timeout_s in (STOP_TIMEOUT_S, 10.0):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
            return
    process.kill()
    process.wait()


def free_port() -> int:
    """Of loopback, one that no outgoing connection takes meanwhile."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
