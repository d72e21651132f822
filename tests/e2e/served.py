"""A cluster as a user starts it: `headrace serve` in a process of its own, taken down by signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from loadtest.server_process import free_port, lift_limits

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 40


def until(condition: Callable[[], bool], within_s: float = 30, still: Callable[[], object] = str) -> float:
    """The seconds that it took. Fails after `within_s` with what there is `still`."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < within_s, f"after {within_s} s: {still()}"
        time.sleep(0.05)
    return time.monotonic() - begun


def answered(send: Callable[[], httpx.Response], within_s: float = 10) -> httpx.Response:
    """The first answer but 503, as SDKs ask again: on a busy machine the record may answer too late."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(send())
        return answers[-1].status_code != 503

    until(is_answered, within_s)
    return answers[-1]


def serve_process(state_dir: Path, port: int, *arguments: str) -> subprocess.Popen[str]:
    """`headrace serve` with its output in a pipe, in a process group of its own."""
    command = [sys.executable, "headrace.py", "serve", "--port", str(port), "--state-dir", str(state_dir)]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_of(state_dir: Path) -> list[psutil.Process]:
    """All processes that belong to the cluster on `state_dir`."""
    run_dir = str((state_dir / "run").resolve())
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environ = process.info["environ"] or {}
        command = " ".join(process.info["cmdline"] or ())
        if run_dir in command or run_dir in environ.get("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", ""):
            found.append(process)
    return found


def open_http(url: str = "", key: str | None = None) -> httpx.Client:
    """For any number of requests at once. To read certificates takes 25 ms, and nobody here has one."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None)
    return httpx.Client(base_url=url, headers=headers, timeout=60, limits=limits, verify=False)


class Served:
    """A running cluster whose demo tenant has no limits. `close` stops it and shows what it left behind."""

    def __init__(self, state_dir: Path, *arguments: str) -> None:
        self.state_dir = state_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = serve_process(state_dir, self.port, *arguments)
        self.output = ""
        self._await_ready()
        lift_limits(self.url, self.admin_key)

    def _await_ready(self) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        for line in self.process.stdout:
            self.output += line
            if line.startswith("Ctrl-C"):
                return
            if time.monotonic() > deadline:
                break
        self.process.kill()
        raise AssertionError(f"the cluster did not start:\n{self.output}")

    @property
    def demo_key(self) -> str:
        return (self.state_dir / "demo.key").read_text().strip()

    @property
    def admin_key(self) -> str:
        return (self.state_dir / "admin.key").read_text().strip()

    def http(self, key: str | None = None) -> httpx.Client:
        return open_http(self.url, key or self.demo_key)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.demo_key, max_retries=0, timeout=60)

    def targets(self) -> list[dict[str, Any]]:
        targets: list[dict[str, Any]] = json.loads((self.state_dir / "run" / "targets.json").read_text())
        return targets

    def members(self, kind: str) -> dict[int, dict[str, Any]]:
        """The living replicas or gateways, as targets, by pid."""
        found = {int(one["labels"]["pid"]): one for one in self.targets() if one["labels"]["process"] == kind}
        return {pid: one for pid, one in found.items() if psutil.pid_exists(pid)}

    def wait_for_members(self, kind: str, count: int, within_s: float = 30) -> float:
        """Until there are as many; the seconds that it took."""
        return until(
            lambda: len(self.members(kind)) == count, within_s, lambda: f"{len(self.members(kind))} {kind}s"
        )

    def engine_gauges(self) -> dict[str, float]:
        """`headrace_engine_*` values, summed over the replicas, read from their own ports."""
        total: dict[str, float] = {}
        with open_http() as client:
            texts = [
                client.get(f"http://{target['targets'][0]}/metrics").text
                for target in self.members("replica").values()
            ]
        for line in "\n".join(texts).splitlines():
            name, _, value = line.partition(" ")
            if name.startswith("headrace_engine_") and "{" not in name:
                total[name] = total.get(name, 0.0) + float(value)
        return total

    def wait_until_idle(self, within_s: float) -> None:
        """Fails unless running = waiting = blocks in use = 0 within the time."""
        names = ("requests_running", "requests_waiting", "blocks_in_use")

        def left() -> dict[str, float]:
            gauges = self.engine_gauges()
            return {name: gauges[f"headrace_engine_{name}"] for name in names}

        until(lambda: not any(left().values()), within_s, left)

    def close(self) -> int:
        """Ctrl-C; the exit status. Fails if a process is left."""
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=STOP_TIMEOUT_S)
        self.output += output
        assert processes_of(self.state_dir) == []
        return self.process.returncode
