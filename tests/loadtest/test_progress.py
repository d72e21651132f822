"""The progress line of a bench."""

from __future__ import annotations

import pytest

from loadtest.progress import ProgressLine


def test_a_line_is_told_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine(every_s=-1)
    for line in ("1 of 2", "1 of 2", "2 of 2"):
        progress.tell(line)
    assert capsys.readouterr().err.splitlines() == ["1 of 2", "2 of 2"]


def test_what_is_over_at_once_needs_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine(every_s=3600).tell("1 of 1")
    assert capsys.readouterr().err == ""
