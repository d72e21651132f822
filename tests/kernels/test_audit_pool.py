"""Compiling processes: what one of them cannot do is that job's answer, and the next job has its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from threading import Event
from typing import IO

import pytest

from kernels.audit import pool as pool_module
from kernels.audit.job import Answer, Job
from kernels.audit.pool import compiling

ANSWERS_WITH_ITS_JOB = """
import sys, time
for line in sys.stdin:
    if "hang" in line:
        time.sleep(3600)
    if "die" in line:
        sys.exit("assertion failed in a pass")
    op = line.split('"op":"')[1].split('"')[0]
    print('{"kernels": [], "compile_s": 0.5, "error": "' + op + '"}', flush=True)
"""


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that answer at once."""

    def started(said: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-S", "-c", ANSWERS_WITH_ITS_JOB]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)

    monkeypatch.setattr(pool_module, "_started", started)


@pytest.fixture
def has_started() -> Event:
    return Event()


@pytest.fixture
def started(
    _no_compiler: None, has_started: Event, monkeypatch: pytest.MonkeyPatch
) -> list[subprocess.Popen[bytes]]:
    """The processes, as they start."""
    processes: list[subprocess.Popen[bytes]] = []
    start = pool_module._started

    def remembered(said: IO[bytes]) -> subprocess.Popen[bytes]:
        processes.append(start(said))
        has_started.set()
        return processes[-1]

    monkeypatch.setattr(pool_module, "_started", remembered)
    return processes


def test_answers_come_in_the_order_of_the_jobs() -> None:
    with compiling(3) as pool:
        answers = list(pool.answers(Job(f"op{i}", {}, "sm_90") for i in range(8)))
    assert answers == [Answer([], 0.5, f"op{i}") for i in range(8)]


def test_a_process_that_dies_takes_only_its_job_with_it() -> None:
    with compiling(1) as pool:
        answers = list(pool.answers([Job(op, {}, "sm_90") for op in ("first", "die", "last")]))
    assert [answer.error for answer in answers] == [
        "first",
        "the compiler ended with status 1: assertion failed in a pass",
        "last",
    ]


def test_closed_it_leaves_no_process_behind(started: list[subprocess.Popen[bytes]]) -> None:
    with compiling(2) as pool:
        list(pool.answers([Job("op", {}, "sm_90")] * 4))
    assert started
    assert all(process.returncode is not None for process in started)


def test_closed_it_waits_for_no_compiler(started: list[subprocess.Popen[bytes]], has_started: Event) -> None:
    with compiling(1) as pool:
        answers = pool.answers([Job("hang", {}, "sm_90"), Job("next", {}, "sm_90")])
        assert has_started.wait(60)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert next(answers).error == "the compiler ended with status -9: "
