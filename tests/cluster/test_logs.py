"""Our own log lines: the level that was asked for, once each."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cluster.logs import set_up_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    logger = logging.getLogger("headrace")
    before = (logger.handlers, logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before[0], before[1], before[2]


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("warning")
    logging.getLogger("headrace.gateway").info("quiet")
    logging.getLogger("headrace.gateway").warning("loud")
    error = capsys.readouterr().err
    assert "WARNING headrace.gateway: loud" in error
    assert "quiet" not in error


def test_setting_up_twice_says_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    set_up_logging("info")
    logging.getLogger("headrace").info("once")
    assert capsys.readouterr().err.count("once") == 1
