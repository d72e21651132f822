"""Aborts and failures in any state: an end is told once, and every block comes back once."""

from __future__ import annotations

import pytest

from engine.block_pool import IntegrityError
from engine.request import RequestOutput, Timing
from engine.scheduler import Scheduler
from tests.builders import (
    add,
    answer,
    make_scheduler,
    run_out,
    step,
)


def test_an_abort_tells_the_end_at_once_and_an_unknown_id_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 5, now=1.0)
    (output,) = scheduler.abort("a", 3.0)
    assert output == RequestOutput(
        request_id="a",
        attempt=0,
        sibling=0,
        first_output_index=0,
        token_ids=(),
        finish_reason="abort",
        num_cached_tokens=0,
        timing=Timing(2.0, 0.0, 0.0, 0.0, 0),
    )
    assert scheduler.abort("a", 3.0) == []


def test_blocks_of_a_launched_request_stay_until_its_step_has_ended() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "a", range(9), max_tokens=3)
    plan = scheduler.schedule(0)
    scheduler.abort("a", 0)
    scheduler.check_integrity()
    assert (scheduler.counters().requests_running, scheduler.counters().blocks_in_use) == (0, 3)
    assert scheduler.update(plan, answer(plan), 0) == []
    scheduler.check_integrity()
    counters = scheduler.counters()
    assert (counters.blocks_in_use, counters.blocks_evictable) == (0, 0), "nothing computed got a name"


def test_an_id_may_come_back_while_its_aborted_step_is_in_flight() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", range(9))
    plan = scheduler.schedule(0)
    scheduler.abort("a", 0)
    add(scheduler, "a", range(9))
    assert scheduler.update(plan, answer(plan), 0) == []
    assert step(scheduler).scheduled[0].token_ids == tuple(range(9))


def test_a_failed_step_ends_its_requests_and_names_none_of_their_blocks() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "a", range(32))
    add(scheduler, "waits", range(100, 117))
    plan = scheduler.schedule(0)
    (output,) = scheduler.fail(plan, 0)
    assert (output.request_id, output.finish_reason, output.error_code) == ("a", "error", "engine_error")
    scheduler.check_integrity()
    counters = scheduler.counters()
    assert (counters.blocks_in_use, counters.blocks_evictable, counters.requests_waiting) == (0, 0, 1)


def test_an_aborted_request_of_a_failed_step_ends_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    plan = scheduler.schedule(0)
    scheduler.abort("a", 0)
    assert scheduler.fail(plan, 0) == []
    scheduler.check_integrity()
    assert scheduler.counters().blocks_in_use == 0


def test_the_integrity_check_sees_a_waiting_request_with_progress() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    (state,) = scheduler._requests.waiting
    state.num_computed_tokens = 1
    with pytest.raises(IntegrityError, match="a waiting request holds blocks"):
        scheduler.check_integrity()


def test_the_integrity_check_sees_a_reserve_that_is_not_there() -> None:
    scheduler = make_scheduler(num_blocks=7)
    add(scheduler, "a", 5, max_tokens=13)
    add(scheduler, "b", 5)
    step(scheduler)
    for _ in range(3):
        next(iter(scheduler._requests.running)).timeline.preempted(0)
    with pytest.raises(IntegrityError, match="3 blocks are kept for reserved requests"):
        scheduler.check_integrity()


def test_one_step_is_in_flight_at_a_time() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    plan = scheduler.schedule(0)
    with pytest.raises(RuntimeError, match="step 1 is in flight"):
        scheduler.schedule(0)
    scheduler.update(plan, answer(plan), 0)
    with pytest.raises(RuntimeError, match="step 1 is not the one in flight"):
        scheduler.update(plan, answer(plan), 0)


def decoding(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 9, max_tokens=9, hash_root=root)
    step(scheduler)


def mid_chunk(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 39, max_tokens=1, hash_root=root)
    step(scheduler)


def last_token(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 9, max_tokens=2, hash_root=root)
    step(scheduler)


def queued(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "seat", 4, max_tokens=9)
    add(scheduler, "seat too", 4, max_tokens=9)
    step(scheduler)
    add(scheduler, "a", 9, hash_root=root)


def preempted(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "old", 24, max_tokens=16)
    add(scheduler, "a", 15, max_tokens=9, hash_root=root)
    for _ in range(10):
        if step(scheduler).preempted:
            return
    raise AssertionError("nobody was preempted")


def mid_chunk_of_two(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 33, max_tokens=1, hash_root=root, n=2)
    step(scheduler)


def just_forked(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 9, max_tokens=9, hash_root=root, n=2)
    step(scheduler)


def forked(scheduler: Scheduler, root: bytes) -> None:
    just_forked(scheduler, root)
    step(scheduler)


STATES = [queued, mid_chunk, preempted, decoding, last_token, mid_chunk_of_two, just_forked, forked]


@pytest.mark.parametrize("reach", STATES)
@pytest.mark.parametrize("is_in_flight", [False, True])
def test_an_abort_in_any_state_gives_back_everything(reach, is_in_flight: bool) -> None:
    """200 times each: what one abort would keep, they would run out of."""
    scheduler = make_scheduler(num_blocks=11, max_num_seqs=2, max_num_batched_tokens=32)
    for number in range(200):
        reach(scheduler, b"chain %d" % number)  # nobody hits what an earlier round computed
        plan = scheduler.schedule(0) if is_in_flight else None
        outputs = scheduler.abort("a", 0)
        assert {output.finish_reason for output in outputs} == {"abort"}
        if plan is not None:
            scheduler.update(plan, answer(plan), 0)
        scheduler.check_integrity()
        run_out(scheduler)
    counters = scheduler.counters()
    assert (counters.requests_running, counters.requests_waiting, counters.blocks_in_use) == (0, 0, 0)
