"""Where a request's time went: each stamp and part exact, also of what it never reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Timing
from engine.timeline import Preemption, Timeline
from tests.builders import add, answer, make_request, make_scheduler


def make_timeline(events: str) -> Timeline:
    """Arrives at 0.5, queued at 1; then, at 2, 4, 8, …: s scheduled, t token, p preempted."""
    timeline = Timeline(0.5, 1.0)
    for number, event in enumerate(events, start=1):
        {"s": timeline.scheduled, "t": timeline.sampled, "p": timeline.preempted}[event](2.0**number)
    return timeline


@pytest.mark.parametrize(
    ("events", "timing"),
    [
        ("", Timing(99.5, 0.0, 0.0, 0.0, 0)),
        ("s", Timing(1.5, 98.0, 0.0, 0.0, 0)),
        ("st", Timing(1.5, 2.0, 96.0, 0.0, 0)),
        ("stst", Timing(1.5, 2.0, 96.0, 0.0, 0)),
        ("sp", Timing(1.5, 98.0, 0.0, 96.0, 1)),
        ("ps", Timing(1.5, 98.0, 0.0, 2.0, 1)),
        ("stps", Timing(1.5, 2.0, 96.0, 8.0, 1)),
        ("stpsps", Timing(1.5, 2.0, 96.0, 8.0 + 32.0, 2)),
        ("stpsp", Timing(1.5, 2.0, 96.0, 8.0 + 68.0, 2)),
    ],
)
def test_the_time_of_a_request_that_ends_at_100(events: str, timing: Timing) -> None:
    assert make_timeline(events).finished(100.0) == timing


def test_every_stamp_stays_where_it_was_first_set() -> None:
    timeline = make_timeline("ststpsstps")
    timeline.finished(2000.0)
    assert timeline == Timeline(
        arrival_s=0.5,
        queued_s=1.0,
        first_scheduled_s=2.0,
        first_token_s=4.0,
        finished_s=2000.0,
        preemptions=[Preemption(32.0, 64.0), Preemption(512.0, 1024.0)],
    )


def test_a_preemption_is_open_until_the_next_step() -> None:
    timeline = make_timeline("stp")
    assert timeline.preemptions == [Preemption(8.0, None)]


def test_recomputed_tokens_are_told_with_the_preemption_that_cost_them() -> None:
    timeline = Timeline(0.0, 0.0)
    for counts in ((0,), (5, 3, 0), (9,)):
        timeline.scheduled(1.0)
        for count in counts:
            timeline.recomputed(count)
        timeline.preempted(2.0)
    assert [one.num_recomputed_tokens for one in timeline.preemptions] == [8, 9, 0]
    assert timeline.finished(3.0).num_recomputed_tokens == 17


def test_a_sibling_waited_with_its_leader_and_has_the_rest_to_itself() -> None:
    leader = make_timeline("spst")
    sibling = leader.fork()
    sibling.sampled(20.0)
    sibling.preempted(30.0)
    assert sibling.finished(40.0) == Timing(1.5, 18.0, 20.0, 4.0 + 10.0, 1)
    assert leader.finished(40.0) == Timing(1.5, 14.0, 24.0, 4.0, 1)


@given(
    events=st.lists(st.tuples(st.sampled_from("stp"), st.floats(0.0, 10.0)), max_size=30),
    handed_over=st.floats(0.0, 5.0),
    last=st.floats(0.0, 10.0),
)
def test_no_time_is_lost_or_counted_twice(
    events: list[tuple[str, float]], handed_over: float, last: float
) -> None:
    now = handed_over
    timeline = Timeline(0.0, handed_over)
    is_preempted = False
    for event, seconds in events:
        now += seconds
        if event == "s":
            timeline.scheduled(now)
            is_preempted = False
        elif event == "p" and not is_preempted:
            timeline.preempted(now)
            is_preempted = True
        elif event == "t" and timeline.first_scheduled_s is not None and not is_preempted:
            timeline.sampled(now)
    now += last
    timing = timeline.finished(now)
    parts = (timing.queued_s, timing.prefill_s, timing.decode_s)
    assert min(*parts, timing.preempted_s) >= 0.0
    assert sum(parts) == pytest.approx(now)
    assert timing.queued_s >= handed_over
    assert timing.preempted_s <= timing.prefill_s + timing.decode_s + 1e-9
    assert timing.num_preemptions == len(timeline.preemptions)


@pytest.mark.parametrize(("is_caching", "num_recomputed_tokens"), [(False, 12), (True, 4)])
def test_the_scheduler_tells_what_a_preemption_cost(is_caching: bool, num_recomputed_tokens: int) -> None:
    """Of its 12 tokens the cache still holds 8: a block of 4 went to who pushed it out."""
    scheduler = make_scheduler(num_blocks=7, enable_prefix_caching=is_caching, max_num_batched_tokens=32)
    add(scheduler, "old", 12, max_tokens=3)
    add(scheduler, "young", 12, max_tokens=2)
    timings: dict[str, Timing | None] = {}
    for now in (1.0, 2.0, 3.0, 4.0):
        plan = scheduler.schedule(now)
        for output in scheduler.update(plan, answer(plan), now):
            timings[output.request_id] = output.timing
    assert timings["old"] == Timing(1.0, 0.0, 2.0, 0.0, 0, 0)
    assert timings["young"] == Timing(1.0, 0.0, 3.0, 2.0, 1, num_recomputed_tokens)
    assert scheduler.counters().recomputed_tokens_total == num_recomputed_tokens


def test_what_came_while_a_step_was_running_has_waited_since() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("r", max_tokens=1), now=5.0, arrival_s=2.0)
    plan = scheduler.schedule(6.0)
    (output,) = scheduler.update(plan, answer(plan), 7.0)
    assert output.timing == Timing(4.0, 1.0, 0.0, 0.0, 0)
