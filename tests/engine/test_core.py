"""The main loop: outputs come from steps, and a failing executor costs only its step's requests."""

from __future__ import annotations

import logging

import pytest

from engine.core import EngineCore
from engine.executor import Done
from engine.policy import FirstComeFirstServed
from engine.request import Timing
from engine.scheduler import RequestRefused, Scheduler
from engine.step import StepPlan, StepResult
from tests.builders import (
    EOS,
    FakeClock,
    answer,
    make_config,
    make_core,
    make_request,
    run_to_end,
    tape_of,
    tokens_of,
)


class FlakyExecutor:
    """Fails in the steps of these numbers, or answers them with `result`; else samples 7."""

    def __init__(self, *failing_steps: int, result: StepResult | None = None, can_reset: bool = True) -> None:
        self._failing_steps = failing_steps
        self._result = result
        self._can_reset = can_reset
        self.num_resets = 0

    def reset(self) -> None:
        if not self._can_reset:
            raise MemoryError("planted")
        self.num_resets += 1

    def submit(self, plan: StepPlan) -> Done:
        if plan.step not in self._failing_steps:
            return Done(answer(plan))
        if self._result is None:
            raise RuntimeError("out of memory")
        return Done(self._result)


def make_flaky_core(executor: FlakyExecutor, **sizes: int) -> EngineCore:
    scheduler = Scheduler(make_config(**sizes), FirstComeFirstServed(), eos_token_ids=[EOS])
    return EngineCore(scheduler, executor, FakeClock())


def test_requests_go_in_and_their_tokens_come_out_step_by_step() -> None:
    a, b = make_request("a", 5), make_request("b", 6)
    core = make_core(tape_of(a, [10, 11]) | tape_of(b, [20]))
    core.add(a)
    core.add(b)
    steps = [{output.request_id: output.token_ids for output in core.step()} for _ in range(3)]
    assert not core.has_work()
    assert steps == [{"a": (10,), "b": (20,)}, {"a": (11,), "b": (EOS,)}, {"a": (EOS,)}]


def test_a_refused_request_leaves_nothing() -> None:
    core = make_core({"*": ()})
    for refuse in (core.check_fits, core.add):
        with pytest.raises(RequestRefused, match="prompt must hold at least one token"):
            refuse(make_request("a", ()))
    assert not core.has_work()


def test_an_abort_ends_a_request_between_steps() -> None:
    core = make_core({"*": (10, 11, 12)})
    core.add(make_request("a"))
    core.step()
    (output,) = core.abort("a")
    assert (output.finish_reason, output.first_output_index) == ("abort", 1)
    assert core.abort("a") == []
    assert not core.has_work()
    core.check_integrity()


def test_times_are_the_clocks() -> None:
    clock = FakeClock(100.0)
    core = make_core({"*": (10, 11)}, clock=clock)
    core.add(make_request("a", max_tokens=2))
    clock.advance(1.0)
    core.step()
    clock.advance(0.25)
    (output,) = core.step()
    assert output.timing == Timing(1.0, 0.0, 0.25, 0.0, 0)


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    core = make_flaky_core(FlakyExecutor(2), max_num_seqs=2)
    for request_id in ("a", "b", "waits"):
        core.add(make_request(request_id, max_tokens=3))
    with caplog.at_level(logging.CRITICAL):
        outputs = run_to_end(core)
    assert {
        key: (tokens_of(rows), rows[-1].finish_reason, rows[-1].error_code) for key, rows in outputs.items()
    } == {
        "a": ([7], "error", "engine_error"),
        "b": ([7], "error", "engine_error"),
        "waits": ([7, 7, 7], "length", None),
    }
    assert core.counters().blocks_in_use == 0


@pytest.mark.parametrize(
    "result",
    [
        StepResult(1, ()),
        StepResult(1, (None,)),
        StepResult(1, (7, 7)),
        StepResult(9, (7,)),
    ],
)
def test_a_result_that_does_not_answer_the_plan_is_a_failure(result: StepResult) -> None:
    core = make_flaky_core(FlakyExecutor(1, result=result))
    core.add(make_request("a"))
    (output,) = core.step()
    assert output.error_code == "engine_error"
    core.check_integrity()


def test_a_token_where_none_was_to_be_sampled_is_a_failure() -> None:
    core = make_flaky_core(FlakyExecutor(1, result=StepResult(1, (7,))), max_num_batched_tokens=32)
    core.add(make_request("a", 33))
    assert [output.error_code for output in core.step()] == ["engine_error"]


def test_a_failure_is_logged_with_its_cause_and_without_tokens(caplog: pytest.LogCaptureFixture) -> None:
    core = make_flaky_core(FlakyExecutor(1))
    core.add(make_request("a", range(123_456, 123_460)))
    core.step()
    assert "step 1 failed with its 1 requests" in caplog.text
    assert "out of memory" in caplog.text
    assert "123456" not in caplog.text


def test_after_a_failed_step_the_executor_is_reset_and_nothing_computed_before_is_used() -> None:
    executor = FlakyExecutor(3)
    core = make_flaky_core(executor, max_num_batched_tokens=32)
    shared = range(16)
    core.add(make_request("first", (*shared, 90), max_tokens=1))
    core.step()
    core.add(make_request("decodes", (*shared, 91), max_tokens=3))
    core.step()
    core.add(make_request("later", (*shared, 92), max_tokens=2))
    assert [output.error_code for output in core.step()] == ["engine_error", "engine_error"]
    assert executor.num_resets == 1
    core.add(make_request("again", (*shared, 93), max_tokens=2))
    outputs = run_to_end(core)["again"]
    assert (tokens_of(outputs), outputs[0].num_cached_tokens) == ([7, 7], 0)


def test_a_running_request_outside_the_failed_step_begins_again_and_loses_no_token() -> None:
    core = make_flaky_core(FlakyExecutor(3), max_num_seqs=5, max_num_batched_tokens=5)
    core.add(make_request("decodes", 1, max_tokens=9))
    core.step()
    core.add(make_request("starved", 12, max_tokens=2, priority=1))
    core.step()
    core.add(make_request("long", 12, max_tokens=2))
    core.add(make_request("short", 2, max_tokens=2))
    assert {output.request_id for output in core.step()} == {"decodes", "long", "short"}
    (output,) = run_to_end(core)["starved"][-1:]
    assert (output.finish_reason, output.first_output_index) == ("length", 1)
    assert output.timing is not None
    assert output.timing.num_preemptions == core.counters().preemptions_total == 0


def test_three_failed_steps_in_a_row_break_the_engine_and_two_do_not() -> None:
    core = make_flaky_core(FlakyExecutor(1, 2, 4, 5, 6))
    broken = []
    for number in range(6):
        core.add(make_request(f"r{number}", max_tokens=1))
        core.step()
        broken.append(core.is_broken)
    assert broken == [False, False, False, False, False, True]


def test_an_executor_that_cannot_be_reset_breaks_the_engine_at_once() -> None:
    core = make_flaky_core(FlakyExecutor(1, can_reset=False))
    core.add(make_request("a"))
    assert [output.error_code for output in core.step()] == ["engine_error"]
    assert core.is_broken


def test_the_time_in_the_executor_is_told_apart_also_of_a_failed_step() -> None:
    clock = FakeClock()

    class SlowExecutor(FlakyExecutor):
        def submit(self, plan: StepPlan) -> Done:
            clock.advance(2.0)
            return super().submit(plan)

    scheduler = Scheduler(make_config(), FirstComeFirstServed(), eos_token_ids=[EOS])
    core = EngineCore(scheduler, SlowExecutor(2), clock)
    core.add(make_request("a", max_tokens=3))
    spent = []
    for _ in range(2):
        clock.advance(5.0)
        core.step()
        spent.append(core.executor_s)
    assert spent == [2.0, 4.0]
