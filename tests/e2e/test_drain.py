"""Replicas and gateways leave under load, each in its own way: no answer is cut, none fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psutil

from tests.e2e.conftest import LONG, NUM_HARDY_REPLICAS
from tests.e2e.served import REPOSITORY, Served, processes_of

NUM_STREAMS = 8
NUM_TOKENS = 400
GATEWAY, REPLICA = "ServeReplica:headrace:Gateway", "ServeReplica:engine-1:Replica"
SCALE = """
import sys, ray
from cluster.serve_control import ServePools
ray.init(address=sys.argv[1], log_to_driver=False)
for line in sys.stdin:
    ServePools().scale("1", int(line))
    print("done", flush=True)
"""


def actors(served: Served, kind: str) -> list[psutil.Process]:
    return [process for process in processes_of(served.state_dir) if kind in " ".join(words_of(process))]


def all_replicas(served: Served) -> list[psutil.Process]:
    """Once as many are there as there should be."""
    until(lambda: len(actors(served, REPLICA)) == NUM_HARDY_REPLICAS)
    return actors(served, REPLICA)


def order(operator: subprocess.Popen[str], num_replicas: int) -> None:
    assert operator.stdin is not None
    assert operator.stdout is not None
    operator.stdin.write(f"{num_replicas}\n")
    operator.stdin.flush()
    assert operator.stdout.readline() == "done\n"


def words_of(process: psutil.Process) -> list[str]:
    """As it was when it was found; it may have ended since."""
    return process.info["cmdline"] or []


def address_of_ray(served: Served) -> str:
    flag = "--gcs-address="
    words = (word for process in processes_of(served.state_dir) for word in words_of(process))
    return next(word.removeprefix(flag) for word in words if word.startswith(flag))


def until(condition: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def load(served: Served) -> Iterator[None]:
    """Long streams that have all begun, and short requests one after the other; at the end all were well."""
    begun = threading.Barrier(NUM_STREAMS + 1, timeout=30)
    is_over = threading.Event()
    with ThreadPoolExecutor(NUM_STREAMS + 1) as pool:
        streams = [pool.submit(one_stream, served, begun) for _ in range(NUM_STREAMS)]
        short: Future[list[int]] = pool.submit(short_requests, served, is_over)
        try:
            begun.wait()
            yield
        finally:
            is_over.set()
        assert [stream.result() for stream in streams] == ["0123456789" * (NUM_TOKENS // 10)] * NUM_STREAMS
        assert set(short.result()) == {200}


def one_stream(served: Served, begun: threading.Barrier) -> str:
    text: list[str] = []
    fields: dict[str, Any] = {"model": "tape", "prompt": LONG, "max_tokens": NUM_TOKENS, "stream": True}
    for chunk in served.openai().completions.create(**fields):
        text += [choice.text for choice in chunk.choices]
        if len(text) == 1:
            begun.wait()
    return "".join(text)


def short_requests(served: Served, is_over: threading.Event) -> list[int]:
    statuses = []
    with served.http() as client:
        while not is_over.is_set():
            body = {"model": "tape", "prompt": "stop", "max_tokens": 3}
            statuses.append(client.post("/v1/completions", json=body).status_code)
    return statuses


def test_a_replica_that_gets_a_sigterm_finishes_its_answers_and_is_replaced(hardy_cluster: Served) -> None:
    served = hardy_cluster
    leaving, *staying = all_replicas(served)
    with load(served):
        leaving.terminate()
        until(lambda: not leaving.is_running())
    assert set(staying) < set(all_replicas(served))


def test_a_gateway_that_gets_a_sigterm_is_not_ready_first_and_finishes_its_answers(
    hardy_cluster: Served,
) -> None:
    served = hardy_cluster
    leaving, staying = actors(served, GATEWAY)
    (address,) = [
        target["labels"]["direct_address"]
        for target in served.targets()
        if target["labels"]["pid"] == str(leaving.pid)
    ]
    assert httpx.get(f"http://{address}/ready").status_code == 200
    with load(served):
        leaving.terminate()
        until(lambda: httpx.get(f"http://{address}/-/healthz").status_code == 503)
        assert httpx.get(f"http://{address}/ready").status_code == 503
        until(lambda: not leaving.is_running())
    until(lambda: len(actors(served, GATEWAY)) == 2)
    assert staying in actors(served, GATEWAY)


def test_a_pool_that_shrinks_gives_up_a_replica_once_its_answers_are_done(hardy_cluster: Served) -> None:
    served = hardy_cluster
    all_replicas(served)
    (gateway, _) = actors(served, GATEWAY)
    operator = subprocess.Popen(
        [sys.executable, "-c", SCALE, address_of_ray(served)],
        cwd=REPOSITORY,
        env=os.environ | gateway.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with load(served):
        order(operator, NUM_HARDY_REPLICAS - 1)
        until(lambda: len(actors(served, REPLICA)) == NUM_HARDY_REPLICAS - 1)
    order(operator, NUM_HARDY_REPLICAS)
    all_replicas(served)
    operator.communicate(timeout=30)
    assert operator.returncode == 0
