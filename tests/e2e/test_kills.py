"""kill -9, a frozen process, a poisonous request: what clients notice of each, under load."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import httpx
import psutil
import pytest

from tests.e2e.conftest import ENDLESS, NUM_REPLICAS, POISON, STEADY_TEXTS
from tests.e2e.served import Served, until
from tests.e2e.steady_load import SteadyLoad

CAPACITY_BACK_WITHIN_S = 15.0
FROZEN_REPLACED_WITHIN_S = 30.0
WORK_GOES_ON_WITHIN_S = 10.0
ABORTED_WITHIN_S = 2.0


def any_replica(served: Served) -> int:
    return random.choice(sorted(served.members("replica")))


def kill_a_replica(served: Served) -> None:
    pid = any_replica(served)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(pid))


def test_nobody_notices_the_death_of_a_replica_but_by_a_pause(tape_cluster: Served) -> None:
    with SteadyLoad(tape_cluster, STEADY_TEXTS, streams=6, wholes=6) as load:
        load.wait_for(10)
        kill_a_replica(tape_cluster)
        tape_cluster.wait_for_members("replica", NUM_REPLICAS, CAPACITY_BACK_WITHIN_S)
        load.wait_for(10)


@pytest.mark.soak
def test_a_frozen_replica_loses_its_work_to_others_and_is_replaced(tape_cluster: Served) -> None:
    with SteadyLoad(tape_cluster, STEADY_TEXTS, streams=4, wholes=4) as load:
        load.wait_for(10)
        frozen = any_replica(tape_cluster)
        os.kill(frozen, signal.SIGSTOP)
        until(lambda: not psutil.pid_exists(frozen), FROZEN_REPLACED_WITHIN_S)
        tape_cluster.wait_for_members("replica", NUM_REPLICAS, CAPACITY_BACK_WITHIN_S)
        load.wait_for(10)
    assert load.longest_pause_s < WORK_GOES_ON_WITHIN_S


def test_the_death_of_a_gateway_ends_its_own_requests_and_no_one_else_s(tape_cluster: Served) -> None:
    tape_cluster.wait_until_idle(10)
    (doomed, first), (_, second) = sorted(tape_cluster.members("gateway").items())
    urls = [f"http://{one['labels']['direct_address']}" for one in (first, second)]
    headers = {"Authorization": f"Bearer {tape_cluster.demo_key}"}
    body = {"model": "tape", "prompt": ENDLESS, "max_tokens": 6000, "stream": True}
    with SteadyLoad(tape_cluster, STEADY_TEXTS, streams=2, wholes=2, url=urls[1]) as load:
        load.wait_for(5)
        with httpx.stream(
            "POST", f"{urls[0]}/v1/completions", json=body, headers=headers, timeout=60
        ) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(doomed, signal.SIGKILL)
            killed_at = time.monotonic()
            with pytest.raises(httpx.HTTPError):
                list(lines)
        load.wait_for(5)
    tape_cluster.wait_until_idle(max(0.1, ABORTED_WITHIN_S - (time.monotonic() - killed_at)))
    tape_cluster.wait_for_members("gateway", 2, CAPACITY_BACK_WITHIN_S)


@pytest.mark.soak
def test_a_poisonous_request_ends_two_replicas_and_no_more(tape_cluster: Served) -> None:
    with SteadyLoad(tape_cluster, STEADY_TEXTS, streams=3, wholes=3) as load, tape_cluster.http() as client:
        load.wait_for(10)
        before = set(tape_cluster.members("replica"))
        body = {"model": "tape", "prompt": chr(POISON), "max_tokens": 5}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "poisonous_request"
        assert answer.headers["x-should-retry"] == "false"
        until(lambda: len(before & set(tape_cluster.members("replica"))) <= NUM_REPLICAS - 2)
        assert len(before & set(tape_cluster.members("replica"))) == NUM_REPLICAS - 2
        load.wait_for(10, within_s=60)
        tape_cluster.wait_for_members("replica", NUM_REPLICAS, 2 * CAPACITY_BACK_WITHIN_S)
    logs = (tape_cluster.state_dir / "run").resolve().rglob("replica_*.log")
    request_id = answer.headers["x-request-id"]
    assert any(f"request {request_id} is poisonous" in path.read_text(errors="replace") for path in logs)


@pytest.mark.soak
def test_twenty_kills_cost_no_answer(tape_cluster: Served) -> None:
    """Each kill waits until capacity is back."""
    seconds = []
    with SteadyLoad(tape_cluster, STEADY_TEXTS, streams=6, wholes=6) as load:
        for _ in range(20):
            load.wait_for(10)
            kill_a_replica(tape_cluster)
            seconds.append(tape_cluster.wait_for_members("replica", NUM_REPLICAS, CAPACITY_BACK_WITHIN_S))
            load.wait_for(10)
    print(json.dumps({"answers": load.num_answers, "back_after_s": seconds, "pause_s": load.longest_pause_s}))
