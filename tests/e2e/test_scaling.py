"""A cluster that scales with demand: up under load, down by draining, to nothing and back; none is lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import NUM_REPLICAS, tape_rows
from tests.e2e.served import REPOSITORY, Served, answered, until
from tests.e2e.steady_load import SteadyLoad

SHARED = "Both prompts begin alike, for so long that a new replica computes it before anybody asks. " * 2
SHORT, LONG = SHARED + "x", SHARED + "yy"
TEXTS = {SHORT: "A" * 100, LONG: "B" * 200}
"""One or two seconds each."""
STEP_MS = 10
SEATS = 4


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A replica makes 400 tokens/s at most."""
    folder = tmp_path_factory.mktemp("scaling")
    tape = folder / "tape.jsonl"
    tape.write_text(tape_rows({prompt: list(text.encode()) for prompt, text in TEXTS.items()}))
    sizes = ("--min-replicas", "0", "--max-replicas", "2", "--scale-down-delay-s", "20")
    model = ("--model", f"tape:{tape}?step_ms={STEP_MS}", "--kv-memory", "64M", "--max-num-seqs", str(SEATS))
    served = Served(folder, *model, *sizes)
    yield served
    assert served.close() == 0


def status(served: Served) -> dict[str, Any]:
    command = [sys.executable, "headrace.py", "status", "--json", "--url", served.url]
    key = ["--key-file", str(served.state_dir / "admin.key")]
    told = subprocess.run([*command, *key], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    shown: dict[str, Any] = json.loads(told.stdout)
    return shown


def num_serving(served: Served) -> int:
    return sum(one["state"] == "serving" for one in status(served)["replicas"])


def num_warmed_tokens(served: Served) -> float:
    with served.http(served.admin_key) as client:
        gauges = client.get("/metrics").text
    return max(float(told) for told in re.findall(r"^headrace_warmed_tokens_total ([\d.]+)$", gauges, re.M))


def test_how_a_cluster_stands_is_told_by_command_and_as_gauges(tape_cluster: Served) -> None:
    tape_cluster.wait_for_members("replica", NUM_REPLICAS)
    until(lambda: num_serving(tape_cluster) == NUM_REPLICAS, 30, lambda: status(tape_cluster))
    told = status(tape_cluster)
    assert (told["min_replicas"], told["target"], told["max_replicas"]) == (NUM_REPLICAS,) * 3
    with tape_cluster.http(tape_cluster.admin_key) as client:
        until(lambda: "headrace_demand_tokens_per_second" in client.get("/metrics").text)
        gauges = client.get("/metrics").text
    assert f'headrace_replicas{{state="serving"}} {NUM_REPLICAS}.0' in gauges


@pytest.mark.soak
def test_up_under_load_and_down_again_without_a_lost_request(served: Served) -> None:
    with SteadyLoad(served, TEXTS, streams=4, wholes=4) as load:
        until(lambda: num_serving(served) == 2, 90, lambda: status(served))
        load.wait_for(12, 60)
        told = status(served)
        assert 0 < told["capacity"]["tokens_per_s_per_replica"] < 2 * SEATS * 1000 / STEP_MS
        assert told["cold_start"]["stages_s"]["weights"] == 0
        assert told["target"] == 2
        until(lambda: num_warmed_tokens(served) > 0)
    with SteadyLoad(served, TEXTS, streams=1, wholes=0):
        until(lambda: num_serving(served) == 1, 240, lambda: status(served))


@pytest.mark.soak
def test_to_nothing_without_demand_and_back_at_the_first_request(served: Served) -> None:
    until(lambda: num_serving(served) == 0, 90, lambda: status(served))
    served.wait_for_members("replica", 0)
    with served.http() as client:
        assert client.get("/ready").status_code == 200
        body = {"model": "tape", "prompt": SHORT, "max_tokens": 4000}
        answer = answered(lambda: client.post("/v1/completions", json=body), 60)
    assert answer.json()["choices"][0]["text"] == TEXTS[SHORT]
    assert num_serving(served) == 1
    assert [one["labels"]["process"] for one in served.targets()].count("replica") == 1
