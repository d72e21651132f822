"""A replica is killed while it streams."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.served import Served, processes_of

BODY = {"model": "tape", "prompt": "x", "max_tokens": 50}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, "--model", "tape:?step_ms=100", "--kv-memory", "64M")
    yield served
    assert served.close() == 0


def kill_the_replica(served: Served) -> None:
    (replica,) = [p for p in processes_of(served.state_dir) if ":Replica" in " ".join(p.cmdline())]
    replica.kill()


def test_a_stream_ends_with_one_error_event_and_service_comes_back(served: Served) -> None:
    with served.http() as client:
        with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            kill_the_replica(served)
            rest = [line for line in lines if line]
        errors = [line for line in rest if '"error"' in line]
        assert len(errors) == 1
        assert errors[0] == rest[-1]
        assert json.loads(errors[0].removeprefix("data: "))["error"]["code"] == "replica_lost"
        assert "data: [DONE]" not in rest

        deadline = time.monotonic() + 15
        while (again := ask(client)).status_code == 503:
            assert again.headers["retry-after"]
            assert time.monotonic() < deadline
        assert again.status_code == 200


def ask(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/completions", json={**BODY, "max_tokens": 1})
