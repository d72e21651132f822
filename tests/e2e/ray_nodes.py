"""Ray's nodes as an operator starts them, two on one machine: `headrace ray-env ray start`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from cluster.ray_session import OBJECT_STORE_BYTES
from cluster.redis_server import find_binary
from loadtest.server_process import free_port
from tests.e2e.served import REPOSITORY

START_TIMEOUT_S = 90


class RayNode:
    """One raylet and all that it starts. `environment` is what `ray start` inherits."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.temp = Path(tempfile.mkdtemp(prefix="hr-node-", dir="/tmp"))  # Ray's sockets need a short path
        ray = Path(sys.executable).with_name("ray")
        command = [sys.executable, "headrace.py", "ray-env", str(ray), "start", *arguments]
        command += [f"--temp-dir={self.temp}", "--num-cpus=4", "--disable-usage-stats"]
        command += [
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        command += [
            f"--{name}={free_port()}" for name in ("dashboard-agent-listen-port", "metrics-export-port")
        ]
        run = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        if run.returncode:
            self.close()
            raise AssertionError(f"the node did not start:\n{run.stdout}")

    @property
    def raylet(self) -> psutil.Process:
        return next(process for process in self._own() if process.name() == "raylet")

    def processes(self, title: str) -> set[int]:
        """Ids of what this node's raylet has started under that title."""
        found = set()
        for process in self.raylet.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if title in " ".join(process.cmdline()):
                    found.add(process.pid)
        return found

    def kill(self) -> None:
        """As a machine goes: everything at once."""
        raylet = self.raylet
        for process in [raylet, *raylet.children(recursive=True)]:
            _kill(process)

    def close(self) -> None:
        for process in list(self._own()):
            with suppress(psutil.NoSuchProcess):
                for one in [*process.children(recursive=True), process]:
                    _kill(one)
        shutil.rmtree(self.temp, ignore_errors=True)

    def _own(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter(["cmdline"]):
            if str(self.temp) in " ".join(process.info["cmdline"] or ()):
                yield process


class TcpRedis:
    """A Redis that every node reaches."""

    def __init__(self, home: Path) -> None:
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                str(find_binary()),
                "--bind",
                "127.0.0.1",
                "--port",
                str(port),
                "--save",
                "",
                "--dir",
                str(home),
            ],
            stdout=subprocess.DEVNULL,
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()
