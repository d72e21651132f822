"""Two nodes of a running Ray, joined: a gateway and a front port on each, and what a lost node costs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from loadtest.server_process import free_port
from tests.e2e.conftest import LONG, TAPES, tape_rows
from tests.e2e.ray_nodes import START_TIMEOUT_S, RayNode, TcpRedis
from tests.e2e.served import Served, serve_process, until

pytestmark = pytest.mark.soak

Kept = TypeVar("Kept", RayNode, TcpRedis, Served)
STEP_MS = 2
LOST_NODE_S = 30.0
"""Until a lost node's replicas have been replaced on the other one."""


class TwoNodes:
    """A head and a worker on one machine, a Redis, and headrace joined to them."""

    def __init__(self, home: Path) -> None:
        self._open: list[RayNode | TcpRedis | Served] = []
        try:
            self._start(home)
        except BaseException:
            self.close()
            raise

    def _start(self, home: Path) -> None:
        self.redis = self._keep(TcpRedis(home))
        gcs, self.worker_port = free_port(), free_port()
        self.address = f"127.0.0.1:{gcs}"
        self.head = self._keep(RayNode(self._ports(), "--head", f"--port={gcs}", "--include-dashboard=false"))
        worker = self._ports() | {"RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(self.worker_port)}
        self.worker = self._keep(RayNode(worker, f"--address={self.address}"))
        tape = home / "tape.jsonl"
        tape.write_text(tape_rows(TAPES))
        self.arguments = ["--ray-address", self.address, "--redis-url", self.redis.url]
        self.arguments += ["--model", f"tape:{tape}?step_ms={STEP_MS}", "--replicas", "4", "--gateways", "2"]
        self.served = self._keep(Served(home / "state", *self.arguments))
        self._await_all()

    def _await_all(self) -> None:
        """One gateway and one replica are enough to be ready; the others follow."""
        until(lambda: len(self.served.targets()) >= 6 and self._answers(self.worker_port), START_TIMEOUT_S)

    @staticmethod
    def _answers(port: int) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _keep(self, one: Kept) -> Kept:
        self._open.append(one)
        return one

    @staticmethod
    def _ports() -> dict[str, str]:
        names = ("HAPROXY_STATS", "HAPROXY_METRICS")
        return os.environ | {f"RAY_SERVE_{name}_PORT": str(free_port()) for name in names}

    def close(self) -> None:
        for one in reversed(self._open):
            if not isinstance(one, Served) or one.process.poll() is None:
                one.close()

    def replicas_of(self, node: RayNode) -> set[str]:
        pids = node.processes(":Replica")
        labels = [target["labels"] for target in self.served.targets()]
        return {one["replica"] for one in labels if "replica" in one and int(one["pid"]) in pids}

    def gateway_of(self, node: RayNode) -> str:
        """The direct address of the one gateway on the node."""
        pids = node.processes(":Gateway")
        labels = [target["labels"] for target in self.served.targets()]
        (address,) = [one["direct_address"] for one in labels if "gateway" in one and int(one["pid"]) in pids]
        return str(address)

    def complete(self, address: str, prompt: str, max_tokens: int) -> httpx.Response:
        return httpx.post(
            f"http://{address}/v1/completions",
            headers={"Authorization": f"Bearer {self.served.demo_key}"},
            json={"model": "tape", "prompt": prompt, "max_tokens": max_tokens},
            timeout=60,
        )


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    monkeypatch.setenv("RAY_AUTH_TOKEN", os.urandom(32).hex())
    monkeypatch.setenv("HEADRACE_SECRET", os.urandom(32).hex())
    monkeypatch.setenv("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", str(free_port()))
    nodes = TwoNodes(tmp_path)
    yield nodes
    nodes.close()


def refused(nodes: TwoNodes, state_dir: Path) -> str:
    """What a second `headrace serve` on the same Ray says before it ends."""
    process = serve_process(state_dir, free_port(), *nodes.arguments)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    return output


def test_each_node_has_a_gateway_and_a_front_port_and_serves_from_all_replicas(
    two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = two_nodes.replicas_of(two_nodes.head), two_nodes.replicas_of(two_nodes.worker)
    assert [len(one) for one in replicas] == [2, 2]
    addresses = [
        two_nodes.gateway_of(two_nodes.head),
        two_nodes.gateway_of(two_nodes.worker),
        f"127.0.0.1:{two_nodes.served.port}",
        f"127.0.0.1:{two_nodes.worker_port}",
    ]
    for address in addresses:
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(two_nodes.complete, address, LONG, 200) for _ in range(8)]
            answers = [one.result() for one in running]
        assert {answer.json()["choices"][0]["text"] for answer in answers} == {"0123456789" * 20}
        assert {answer.headers["x-headrace-replica"] for answer in answers} == set().union(*replicas)

    assert "Ray Serve runs there already" in refused(two_nodes, tmp_path / "second")
    monkeypatch.setenv("HEADRACE_SECRET", "another")
    said = refused(two_nodes, tmp_path / "third")
    assert said.count(": HEADRACE_SECRET is another one, must be the launcher's") == 2

    assert two_nodes.served.close() == 0
    for node in (two_nodes.head, two_nodes.worker):
        assert node.raylet.is_running()
        assert node.processes("ServeReplica") == node.processes("haproxy") == set()


def test_a_lost_node_costs_the_other_s_gateway_no_answer(two_nodes: TwoNodes) -> None:
    gateway, lost = two_nodes.gateway_of(two_nodes.head), two_nodes.replicas_of(two_nodes.worker)
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(two_nodes.complete, gateway, LONG, 2000) for _ in range(8)]
        until(lambda: two_nodes.served.engine_gauges()["headrace_engine_requests_running"] == 8)
        assert not any(one.done() for one in running)
        two_nodes.worker.kill()
        answers = [one.result() for one in running]
    assert [answer.status_code for answer in answers] == [200] * 8
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {"0123456789" * 200}

    deadline = time.monotonic() + LOST_NODE_S
    while len(two_nodes.replicas_of(two_nodes.head)) < 4:
        answer = two_nodes.complete(f"127.0.0.1:{two_nodes.served.port}", "stop", 4)
        assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "ABCD")
        assert answer.headers["x-headrace-replica"] not in lost
        assert time.monotonic() < deadline
    assert two_nodes.served.close() == 0
