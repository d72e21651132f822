"""SIGTERM in an actor's process: the hook into Ray's handler, and what it runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator

import pytest
from ray._private import worker

from cluster import leaving
from cluster.leaving import ENDS_THE_PROCESS, on_sigterm
from tests.cluster.fake_replica import settle


class Ended:
    """What would have ended the process."""

    def __init__(self) -> None:
        self.by_us: list[int] = []
        self.by_ray: list[str] = []


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ended]:
    ended = Ended()
    monkeypatch.setattr(leaving, "end_process", ended.by_us.append)
    monkeypatch.setattr(
        worker, ENDS_THE_PROCESS, lambda message, exit_code=0: ended.by_ray.append(f"{message} {exit_code}")
    )
    return ended


def sigterm() -> None:
    """What Ray's handler does, in its words."""
    getattr(worker, ENDS_THE_PROCESS)("The process receives a SIGTERM.", exit_code=1)


def test_ray_s_handler_calls_what_we_replace_and_nothing_else_there_does() -> None:
    assert f"{ENDS_THE_PROCESS}(" in inspect.getsource(worker.Worker.main_loop)
    assert "set_sigterm_handler(sigterm_handler)" in inspect.getsource(worker.Worker.main_loop)
    assert inspect.getsource(worker).count(f"{ENDS_THE_PROCESS}(") == 1


async def test_the_first_leaves_and_the_process_ends_when_it_has_left(ended: Ended) -> None:
    may_end = asyncio.Event()

    async def leave() -> None:
        await may_end.wait()

    on_sigterm(asyncio.get_running_loop(), leave)
    sigterm()
    await settle()
    assert (ended.by_us, ended.by_ray) == ([], [])
    may_end.set()
    await settle()
    assert (ended.by_us, ended.by_ray) == ([0], [])


async def test_the_second_ends_the_process_as_ray_would(ended: Ended) -> None:
    on_sigterm(asyncio.get_running_loop(), asyncio.Event().wait)  # type: ignore[arg-type]
    sigterm()
    await settle()
    sigterm()
    assert ended.by_ray == ["The process receives a SIGTERM. 1"]


async def test_a_leave_that_fails_is_logged_and_the_process_ends_all_the_same(
    ended: Ended, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise RuntimeError("no")

    on_sigterm(asyncio.get_running_loop(), leave)
    with caplog.at_level(logging.WARNING, "headrace.leaving"):
        sigterm()
        await settle()
    assert ended.by_us == [0]
    assert "could not leave in order" in caplog.text
