"""A rolling update as an operator makes it: a good one under load, and one that must not come in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest

from tests.e2e.served import REPOSITORY, Served

A, B = b"A" * 100, b"B" * 100
"""What each version answers, in a second and a bit."""


def tape(path: Path, answer: bytes) -> str:
    path.write_text(json.dumps({"prompt_hash": "*", "token_ids": list(answer)}) + "\n")
    return f"tape:{path}?step_ms=10"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("rollout")
    model = tape(folder / "a.jsonl", A)
    served = Served(folder, "--model", model, "--replicas", "2", "--kv-memory", "64M")
    yield served
    assert served.close() == 0


def rollout(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "headrace.py", "rollout", "--json", "--url", served.url]
    key = ["--key-file", str(served.state_dir / "admin.key")]
    return subprocess.run(
        [*command, *key, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )


class Load:
    """Clients that ask again and again until they are told to stop; half of them read streams."""

    def __init__(self, served: Served, num_clients: int) -> None:
        self._served = served
        self._enough = Event()
        self._pool = ThreadPoolExecutor(num_clients)
        self._clients = [self._pool.submit(self._ask, number % 2 == 0) for number in range(num_clients)]

    def stop(self) -> list[str]:
        """All answers, each whole. Raises what any client met."""
        self._enough.set()
        with self._pool:
            return [answer for client in self._clients for answer in client.result()]

    def _ask(self, is_streamed: bool) -> list[str]:
        answers = []
        with self._served.http() as client:
            while not self._enough.is_set():
                answers.append(streamed(client) if is_streamed else whole(client))
        return answers


BODY = {"model": "tape", "prompt": "x", "max_tokens": 100}


def whole(client: httpx.Client) -> str:
    answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def streamed(client: httpx.Client) -> str:
    text = ""
    with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    for line in lines[:-1]:
        text += json.loads(line)["choices"][0]["text"]
    return text


@pytest.mark.soak
def test_a_version_that_answers_wrongly_never_serves_and_the_old_one_goes_on(
    served: Served, tmp_path: Path
) -> None:
    golden = tmp_path / "golden.jsonl"
    golden.write_text('{"prompt": "x", "text": "AAAA"}\n')
    load = Load(served, 2)
    failed = rollout(served, "--model", tape(tmp_path / "b.jsonl", B), "--golden", str(golden))
    told = json.loads(failed.stdout)
    assert (failed.returncode, told["state"], told["num_updated"]) == (1, "failed", 0)
    assert told["error"] == "golden prompt 1 got another answer than expected, from token 1 on"
    assert told["steps"][-1]["text"] == "the old version serves with 2 of 2 replica(s)"
    assert told["error"] in failed.stderr
    assert set(load.stop()) == {A.decode()}


@pytest.mark.soak
def test_a_good_version_takes_over_under_load_and_nothing_fails(served: Served, tmp_path: Path) -> None:
    load = Load(served, 4)
    done = rollout(served, "--model", tape(tmp_path / "b.jsonl", B))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["num_updated"]) == ("done", 2)
    with served.http() as client:
        assert {whole(client) for _ in range(4)} == {B.decode()}
    assert set(load.stop()) == {A.decode(), B.decode()}
