"""Replicas that die while they stream: the only one of a cluster, and one of two with a real model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import Served

ANSWER = "A headrace brings water to the turbines at a steady head."
pytestmark = pytest.mark.soak


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        started.append(Served(tmp_path, *arguments))
        return started[-1]

    yield start
    for served in started:
        assert served.close() == 0


def stream(
    served: Served, body: dict[str, Any], on_first: Callable[[str], None] = lambda replica: None
) -> str:
    """The joined text of a stream that ends as it should. `on_first` hears who made the first piece."""
    texts: list[str] = []
    ends = 0
    with served.http() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ends += 1
                continue
            if not texts:
                on_first(answer.headers["x-headrace-replica"])
            texts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    assert ends == 1
    return "".join(texts)


def kill_replica(served: Served, replica_id: str) -> None:
    targets = served.members("replica")
    (pid,) = [pid for pid, target in targets.items() if target["labels"]["replica"] == replica_id]
    os.kill(pid, signal.SIGKILL)


def test_the_stream_of_the_only_one_waits_for_the_next_and_goes_on(serve: Callable[..., Served]) -> None:
    served = serve("--model", "tape:?step_ms=100", "--kv-memory", "64M")
    body = {"model": "tape", "prompt": "x", "max_tokens": 100, "stream": True}
    assert stream(served, body, lambda replica: kill_replica(served, replica)) == ANSWER


def test_in_reference_mode_the_text_is_byte_equal_to_an_undisturbed_one(
    serve: Callable[..., Served],
) -> None:
    served = serve("--model", "smollm2", "--deterministic", "--replicas", "2", "--kv-memory", "256M")
    body = {
        "model": "SmolLM2-135M-Instruct",
        "prompt": "Once upon a time, at the head of a long river,",
        "max_tokens": 64,
        "temperature": 0.9,
        "seed": 11,
        "ignore_eos": True,
        "stream": True,
    }
    undisturbed = stream(served, body)
    assert stream(served, body, lambda replica: kill_replica(served, replica)) == undisturbed
    served.wait_for_members("replica", 2, within_s=60)
