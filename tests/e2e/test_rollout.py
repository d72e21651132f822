"""A rolling update as an operator makes it: a good one under load, and one that must not come in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import tape_rows
from tests.e2e.served import REPOSITORY, Served, until
from tests.e2e.steady_load import SteadyLoad

A, B, C = {"x": "A" * 100}, {"x": "B" * 100}, {"x": "C" * 100}
"""What each version answers, in a second and a bit."""


def tape(path: Path, texts: dict[str, str]) -> str:
    path.write_text(tape_rows({prompt: list(text.encode()) for prompt, text in texts.items()}))
    return f"tape:{path}?step_ms=10"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("rollout")
    model = tape(folder / "a.jsonl", A)
    served = Served(folder, "--model", model, "--replicas", "2", "--gateways", "2", "--kv-memory", "64M")
    yield served
    assert served.close() == 0


def rollout(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "headrace.py", "rollout", "--json", "--url", served.url]
    key = ["--key-file", str(served.state_dir / "admin.key")]
    return subprocess.run(
        [*command, *key, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )


def kill_a_gateway(served: Served) -> set[int]:
    """The gateways of before."""
    gateways = set(served.members("gateway"))
    os.kill(min(gateways), signal.SIGKILL)
    return gateways


def wait_for_another_gateway(served: Served, before: set[int]) -> None:
    """Until two are ready that are not the two of before."""

    def are_ready() -> bool:
        now = set(served.members("gateway"))
        return len(now) == 2 and now != before and all(map(is_ready, gateway_urls(served)))

    until(are_ready, 40, lambda: served.members("gateway"))


def gateway_urls(served: Served) -> list[str]:
    return [f"http://{one['labels']['direct_address']}" for one in served.members("gateway").values()]


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.HTTPError:
        return False


def answer(client: httpx.Client) -> str:
    body = {"model": "tape", "prompt": "x", "max_tokens": 100}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.soak
def test_a_version_that_answers_wrongly_never_serves_and_the_old_one_goes_on(
    served: Served, tmp_path: Path
) -> None:
    golden = tmp_path / "golden.jsonl"
    golden.write_text('{"prompt": "x", "text": "AAAA"}\n')
    with SteadyLoad(served, A, streams=1, wholes=1) as load:
        load.wait_for(2)
        failed = rollout(served, "--model", tape(tmp_path / "b.jsonl", B), "--golden", str(golden))
        load.wait_for(2)
    told = json.loads(failed.stdout)
    assert (failed.returncode, told["state"], told["num_updated"]) == (1, "failed", 0)
    assert told["error"] == "golden prompt 1 got another answer than expected, from token 1 on"
    assert told["steps"][-1]["text"] == "the old version serves with 2 of 2 replica(s)"
    assert told["error"] in failed.stderr


@pytest.mark.soak
def test_a_good_version_takes_over_under_load_and_nothing_fails(served: Served, tmp_path: Path) -> None:
    with SteadyLoad(served, A, B, streams=2, wholes=2) as load:
        load.wait_for(4)
        done = rollout(served, "--model", tape(tmp_path / "b.jsonl", B))
        load.wait_for(4)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["num_updated"]) == ("done", 2)
    with served.http() as client:
        assert {answer(client) for _ in range(4)} == {*B.values()}
    assert load.heard == {*A.values(), *B.values()}


@pytest.mark.soak
def test_a_gateway_killed_in_the_middle_holds_nothing_up(served: Served, tmp_path: Path) -> None:
    with served.http(served.admin_key) as admin, ThreadPoolExecutor(1) as pool:

        def is_in_the_middle() -> bool:
            rollouts: list[dict[str, Any]] = admin.get("/admin/v1/rollouts").json()["data"]
            return any(one["state"] == "running" and one["num_updated"] == 1 for one in rollouts)

        running = pool.submit(rollout, served, "--model", tape(tmp_path / "c.jsonl", C))
        until(is_in_the_middle)
        before = kill_a_gateway(served)
        done = running.result()
    assert done.returncode == 0, done.stderr
    wait_for_another_gateway(served, before)


@pytest.mark.soak
def test_a_gateway_that_starts_later_needs_only_the_files_of_the_version_that_serves(
    served: Served, tmp_path: Path
) -> None:
    done = rollout(served, "--model", tape(tmp_path / "d.jsonl", B))
    assert done.returncode == 0, done.stderr
    (served.state_dir / "a.jsonl").unlink()
    wait_for_another_gateway(served, kill_a_gateway(served))
    for url in gateway_urls(served):
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {served.demo_key}"}) as client:
            assert answer(client) == B["x"]
