"""A row that fails alone: its request ends, nothing of it is cached, and its neighbours notice nothing."""

from __future__ import annotations

from engine.request import RequestOutput
from engine.scheduler import Scheduler
from tests.builders import add, answer, make_scheduler, run_out, step, tokens_of
from tests.engine.loads import with_failed_row


def fail_row(scheduler: Scheduler, row: int) -> list[RequestOutput]:
    plan = scheduler.schedule(0)
    outputs = scheduler.update(plan, with_failed_row(answer(plan), row), 0)
    scheduler.check_integrity()
    return outputs


def cached_tokens_of(scheduler: Scheduler, prompt: range) -> int | None:
    add(scheduler, "probe", prompt, max_tokens=1)
    while True:
        plan = scheduler.schedule(0)
        for output in scheduler.update(plan, answer(plan), 0):
            if output.request_id == "probe":
                return output.num_cached_tokens


def test_the_affected_request_ends_with_its_error_and_the_others_get_their_token() -> None:
    scheduler = make_scheduler()
    for request_id in ("a", "b", "c"):
        add(scheduler, request_id)
    ends = {output.request_id: (output.error_code, tokens_of([output])) for output in fail_row(scheduler, 1)}
    assert ends == {"a": (None, [7]), "b": ("non_finite_logits", []), "c": (None, [7])}
    run_out(scheduler)
    assert scheduler.counters().failed_requests_total == 1


def test_its_blocks_never_enter_the_prefix_cache() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    prompt = range(100, 148)
    add(scheduler, "a", prompt)
    step(scheduler)  # a first chunk, of 32, was computed without a fault and bears names
    fail_row(scheduler, 0)
    assert scheduler.counters().blocks_evictable == 0
    assert cached_tokens_of(scheduler, prompt) == 0


def test_a_cached_prefix_that_makes_a_request_fail_is_computed_anew() -> None:
    scheduler = make_scheduler()
    prompt = range(100, 117)
    assert cached_tokens_of(scheduler, prompt) == 0
    add(scheduler, "a", prompt)
    fail_row(scheduler, 0)
    assert cached_tokens_of(scheduler, prompt) == 0


def test_what_others_hold_or_continue_keeps_its_name() -> None:
    scheduler = make_scheduler()
    prompt = range(100, 117)
    add(scheduler, "holds", prompt, max_tokens=9)
    step(scheduler)
    add(scheduler, "a", prompt)
    plan = scheduler.schedule(0)
    row = [scheduled.request_id for scheduled in plan.scheduled].index("a")
    scheduler.update(plan, with_failed_row(answer(plan), row), 0)
    scheduler.check_integrity()
    assert cached_tokens_of(scheduler, prompt) == 16


def test_a_request_aborted_in_flight_and_failed_ends_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 9)
    plan = scheduler.schedule(0)
    assert len(scheduler.abort("a", 0)) == 1
    assert scheduler.update(plan, with_failed_row(answer(plan), 0), 0) == []
    scheduler.check_integrity()
    assert scheduler.counters().blocks_in_use == 0
