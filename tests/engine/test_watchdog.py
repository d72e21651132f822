"""The watchdog: work that advances is never called stalled, work that stands still always is."""

from __future__ import annotations

from msgspec.structs import replace

from engine.counters import EngineCounters
from engine.watchdog import Watchdog
from tests.builders import make_scheduler

IDLE = make_scheduler().counters()


def after(num_computed_tokens: int, **fields: int) -> EngineCounters:
    return replace(IDLE, computed_tokens_total=num_computed_tokens, **fields)


def test_work_that_stands_still_for_the_limit_is_a_stall() -> None:
    watchdog = Watchdog(5.0, now=0.0)
    for now in (1.0, 3.0, 5.9):
        watchdog.observe(after(7), has_work=True, now=now)
        assert not watchdog.is_stalled(now)
    assert watchdog.is_stalled(6.0), "seen to advance at 1, and not since"


def test_a_token_computed_or_a_moment_without_work_begins_anew() -> None:
    watchdog = Watchdog(5.0, now=0.0)
    for now, counters, has_work in ((4.0, after(1), True), (8.0, after(2), True), (12.0, after(2), False)):
        watchdog.observe(counters, has_work=has_work, now=now)
        assert not watchdog.is_stalled(now)
    watchdog.observe(after(2), has_work=True, now=16.9)
    assert not watchdog.is_stalled(21.8)
    assert watchdog.is_stalled(21.9)


def test_work_that_comes_after_rest_has_the_whole_limit() -> None:
    watchdog = Watchdog(0.4, now=0.0)
    watchdog.observe(after(7), has_work=False, now=10.0)
    watchdog.observe(after(7), has_work=True, now=10.5)
    assert not watchdog.is_stalled(10.5)
    watchdog.observe(after(7), has_work=True, now=10.9)
    assert watchdog.is_stalled(10.9)


def test_no_work_is_no_stall() -> None:
    watchdog = Watchdog(5.0, now=0.0)
    watchdog.observe(after(0), has_work=False, now=1000.0)
    assert not watchdog.is_stalled(1000.0)


def test_it_says_whether_a_step_hangs_or_nothing_is_planned() -> None:
    watchdog = Watchdog(5.0, now=0.0)
    counters = after(0, requests_running=2, requests_waiting=1, blocks_in_use=4)
    assert watchdog.explain(counters, step_begun=1.0, now=7.0) == (
        "a step has been running for 6.0 s (2 running, 1 waiting): the executor hangs"
    )
    assert watchdog.explain(counters, step_begun=None, now=7.0) == (
        "nothing was computed for 7.0 s (2 running, 1 waiting, 4 of 100 blocks in use)"
    )
