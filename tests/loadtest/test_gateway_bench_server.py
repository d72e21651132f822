"""Servers that the gateway bench starts: ready when they are handed out, gone afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from loadtest.gateway_bench import server
from loadtest.gateway_bench.answers import BenchRequest
from loadtest.gateway_bench.engine_latency import engine_latency
from loadtest.gateway_bench.load import run_load
from loadtest.gateway_bench.scripted import MODEL
from loadtest.server_process import CannotStart


@pytest.fixture(autouse=True)
def temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of the bench go there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


_others: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def _remember_others() -> None:
    """Clusters of other tests may run beside these."""
    _others.update(psutil.Process().children())


def children() -> list[psutil.Process]:
    """Of this test."""
    return [process for process in psutil.Process().children() if process not in _others]


def test_uvicorn_alone_answers_in_full_and_leaves_nothing(temp_dir: Path) -> None:
    with server.plain_server() as plain:
        (process,) = children()
        outcome = run_load(plain.port, BenchRequest(plain.key, MODEL, 32), streams=4, answers_each=2)
    assert [(answer.num_tokens, answer.num_events) for answer in outcome.answers] == [(32, 32)] * 8
    assert not process.is_running()
    assert list(temp_dir.iterdir()) == []


def test_a_server_is_taken_down_when_what_is_done_with_it_fails(temp_dir: Path) -> None:
    seen: list[psutil.Process] = []

    def fail() -> None:
        with server.plain_server():
            seen.extend(children())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [process.is_running() for process in seen] == [False]
    assert list(temp_dir.iterdir()) == []


def test_a_server_that_does_not_start_says_its_last_words(temp_dir: Path) -> None:
    """A cluster of 0 replicas is refused before anything of it is there."""
    with (
        pytest.raises(CannotStart, match=r"a server did not start: .*--replicas"),
        server.tape_cluster(1.0, replicas=0, seats=1),
    ):
        pass
    assert children() == []
    assert list(temp_dir.iterdir()) == []


def test_the_engine_alone_takes_a_step_for_each_token(temp_dir: Path) -> None:
    figures = engine_latency(4.0, num_requests=2, output_tokens=3)
    assert figures["requests"] == 2
    assert figures["ttft_p50_ms"] >= 4
    assert figures["itl_p50_ms"] >= 4
    assert list(temp_dir.iterdir()) == []
