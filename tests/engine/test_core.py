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
    """Fails in the step of that number, in `submit` or in `result`; else samples 7."""

    def __init__(self, failing_step: int, *, result: StepResult | None = None) -> None:
        self._failing_step = failing_step
        self._result = result

    def submit(self, plan: StepPlan) -> Done:
        if plan.step != self._failing_step:
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
    output = core.abort("a")
    assert output is not None
    assert (output.finish_reason, output.first_output_index) == ("abort", 1)
    assert core.abort("a") is None
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
