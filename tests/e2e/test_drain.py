"""Replicas and gateways leave under load, each in its own way: no answer is cut, none fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.e2e.conftest import NUM_REPLICAS, STEADY_TEXTS
from tests.e2e.served import REPOSITORY, Served, processes_of, until
from tests.e2e.steady_load import SteadyLoad

SCALE = """
import sys, ray
from cluster.serve_control import ServePools
ray.init(address=sys.argv[1], log_to_driver=False)
for line in sys.stdin:
    ServePools().scale("1", int(line))
    print("done", flush=True)
"""


@contextmanager
def under_load(served: Served) -> Iterator[None]:
    """Clients have begun before the block, and go on after it."""
    with SteadyLoad(served, STEADY_TEXTS, streams=8, wholes=2) as load:
        load.wait_for(10)
        yield
        load.wait_for(10)


def replicas(served: Served) -> list[int]:
    """Once as many are there as there should be."""
    served.wait_for_members("replica", NUM_REPLICAS)
    return list(served.members("replica"))


def leave(pid: int) -> psutil.Process:
    process = psutil.Process(pid)
    process.terminate()
    return process


def order(operator: subprocess.Popen[str], num_replicas: int) -> None:
    assert operator.stdin is not None
    assert operator.stdout is not None
    operator.stdin.write(f"{num_replicas}\n")
    operator.stdin.flush()
    assert operator.stdout.readline() == "done\n"


def address_of_ray(served: Served) -> str:
    flag = "--gcs-address="
    words = (word for process in processes_of(served.state_dir) for word in process.info["cmdline"] or [])
    return next(word.removeprefix(flag) for word in words if word.startswith(flag))


@pytest.mark.soak
def test_a_replica_that_gets_a_sigterm_finishes_its_answers_and_is_replaced(tape_cluster: Served) -> None:
    leaving, *staying = replicas(tape_cluster)
    with under_load(tape_cluster):
        process = leave(leaving)
        until(lambda: not process.is_running())
    assert set(staying) < set(replicas(tape_cluster))


def test_a_gateway_that_gets_a_sigterm_is_not_ready_first_and_finishes_its_answers(
    tape_cluster: Served,
) -> None:
    tape_cluster.wait_for_members("gateway", 2)
    (leaving, target), (staying, _) = tape_cluster.members("gateway").items()
    url = f"http://{target['labels']['direct_address']}"
    assert httpx.get(f"{url}/ready").status_code == 200
    with under_load(tape_cluster):
        process = leave(leaving)
        until(lambda: httpx.get(f"{url}/-/healthz").status_code == 503)
        assert httpx.get(f"{url}/ready").status_code == 503
        until(lambda: not process.is_running())
    tape_cluster.wait_for_members("gateway", 2)
    assert staying in tape_cluster.members("gateway")


@pytest.mark.soak
def test_a_pool_that_shrinks_gives_up_a_replica_once_its_answers_are_done(tape_cluster: Served) -> None:
    replicas(tape_cluster)
    gateway, *_ = tape_cluster.members("gateway")
    operator = subprocess.Popen(
        [sys.executable, "-c", SCALE, address_of_ray(tape_cluster)],
        cwd=REPOSITORY,
        env=os.environ | psutil.Process(gateway).environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with under_load(tape_cluster):
        order(operator, NUM_REPLICAS - 1)
        tape_cluster.wait_for_members("replica", NUM_REPLICAS - 1)
    order(operator, NUM_REPLICAS)
    replicas(tape_cluster)
    operator.communicate(timeout=30)
    assert operator.returncode == 0
