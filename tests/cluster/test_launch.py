"""The launcher before Ray: a request to stop at every moment, and what stands in a start's way."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.launch import Interrupted, Launcher
from cluster.settings import ServeSettings
from cluster.stages import StartError


def launcher(tmp_path: Path, **settings: Any) -> Launcher:
    return Launcher(ServeSettings(model="tape:", state_dir=tmp_path, **settings), Console(file=io.StringIO()))


def test_a_request_during_a_start_ends_it_and_the_next_one_lets_the_clearing_up_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = launcher(tmp_path)
    monkeypatch.setattr("cluster.launch.check_port", lambda host, port: starting.ask_to_stop())
    with pytest.raises(Interrupted):
        starting.start()
    starting.ask_to_stop()
    assert starting.is_asked_to_stop


def test_a_request_that_something_swallowed_is_remembered_and_raised_once_more_only_there(
    tmp_path: Path,
) -> None:
    starting = launcher(tmp_path)
    with pytest.raises(Interrupted):
        starting.ask_to_stop()
    starting.ask_to_stop()
    with pytest.raises(Interrupted):
        starting._pause()


def test_a_request_after_a_failed_start_lets_the_clearing_up_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(host: str, port: int) -> None:
        raise StartError("taken", "choose another")

    monkeypatch.setattr("cluster.launch.check_port", refuse)
    failing = launcher(tmp_path)
    with pytest.raises(StartError, match="taken"):
        failing.start()
    failing.ask_to_stop()
    assert failing.is_asked_to_stop


def test_no_handler_for_exceptions_hides_an_interrupt() -> None:
    assert not issubclass(Interrupted, Exception)


def test_what_is_in_the_run_directory_s_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(state_dir: Path) -> None:
        raise PermissionError("/x is not a private directory of this user")

    monkeypatch.setattr("cluster.launch.RunDir.claim", refuse)
    starting = launcher(tmp_path)
    with pytest.raises(StartError, match="cannot be made: /x is not a private directory of this user"):
        starting._claim_run_dir()
