"""An engine that hangs or is broken is replaced, and says why: a zombie would look healthy for ever."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import LONG, TAPES, tape_rows
from tests.e2e.served import Served

WATCHDOG_S = 2
REPLACED_WITHIN_S = 40


@pytest.fixture(params=["hang@40:600", "raise@40+"])
def faulty_cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    """Each replica does its first 39 steps well."""
    monkeypatch.setenv("HEADRACE_ALLOW_FAULTS", "1")
    tape = tmp_path / "tape.jsonl"
    tape.write_text(tape_rows(TAPES))
    options = ("--kv-memory", "64M", "--watchdog-s", str(WATCHDOG_S), "--fault", request.param)
    served = Served(tmp_path, "--model", f"tape:{tape}?step_ms=5", *options)
    yield served
    assert served.close() == 0


@pytest.mark.soak
def test_a_broken_engine_ends_its_requests_with_an_error_and_is_replaced(faulty_cluster: Served) -> None:
    with faulty_cluster.http() as client:
        replica = serving_replica(client)
        assert replica is not None
        assert error_events(client) == [True]
        deadline = time.monotonic() + REPLACED_WITHIN_S
        while serving_replica(client) in (None, replica):  # each try fails one more step of a broken one
            assert time.monotonic() < deadline, "no other replica took its place"
            time.sleep(0.2)
    logs = (faulty_cluster.state_dir / "run").resolve().rglob("replica_*.log")
    log = "".join(path.read_text(errors="replace") for path in logs)
    assert "the executor hangs" in log or "the last 3 steps failed" in log


def error_events(client: httpx.Client) -> list[bool]:
    """Of one long stream: whether each event but the tokens is an error."""
    body = {"model": "tape", "prompt": LONG, "max_tokens": 2000, "stream": True}
    events = []
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "choices" not in event:
                    events.append("error" in event)
    return events


def serving_replica(client: httpx.Client) -> str | None:
    answer = client.post("/v1/completions", json={"model": "tape", "prompt": "y", "max_tokens": 1})
    return answer.headers.get("x-headrace-replica") if answer.status_code == 200 else None
