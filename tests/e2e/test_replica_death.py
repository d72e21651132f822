"""The only replica dies while it streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served import Served, processes_of

ANSWER = "A headrace brings water to the turbines at a steady head."


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, "--model", "tape:?step_ms=100", "--kv-memory", "64M")
    yield served
    assert served.close() == 0


def kill_the_replica(served: Served) -> None:
    (replica,) = [p for p in processes_of(served.state_dir) if ":Replica" in " ".join(p.cmdline())]
    replica.kill()


@pytest.mark.soak
def test_its_stream_waits_for_the_next_one_and_goes_on(served: Served) -> None:
    body = {"model": "tape", "prompt": "x", "max_tokens": 100, "stream": True}
    with served.http() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        first = next(lines)
        kill_the_replica(served)
        rest = list(lines)
    assert rest.pop() == "[DONE]"
    chunks = [json.loads(line) for line in (first, *rest)]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == ANSWER
