"""Where a request's time went: each part exact, also of what it never reached."""

from __future__ import annotations

import pytest

from engine.request import Timing
from engine.timeline import Timeline


def make_timeline(events: str) -> Timeline:
    """Arrives at 1; then, at 2, 4, 8, …: s scheduled, t token, p preempted."""
    timeline = Timeline(1.0)
    for number, event in enumerate(events, start=1):
        {"s": timeline.scheduled, "t": timeline.sampled, "p": timeline.preempted}[event](2.0**number)
    return timeline


@pytest.mark.parametrize(
    ("events", "timing"),
    [
        ("", Timing(99.0, 0.0, 0.0, 0.0, 0)),
        ("s", Timing(1.0, 98.0, 0.0, 0.0, 0)),
        ("st", Timing(1.0, 2.0, 96.0, 0.0, 0)),
        ("stst", Timing(1.0, 2.0, 96.0, 0.0, 0)),
        ("sp", Timing(1.0, 98.0, 0.0, 96.0, 1)),
        ("stps", Timing(1.0, 2.0, 96.0, 8.0, 1)),
        ("stpsps", Timing(1.0, 2.0, 96.0, 8.0 + 32.0, 2)),
        ("stpsp", Timing(1.0, 2.0, 96.0, 8.0 + 68.0, 2)),
    ],
)
def test_the_time_of_a_request_that_ends_at_100(events: str, timing: Timing) -> None:
    assert make_timeline(events).timing(100.0) == timing
