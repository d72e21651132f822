"""Faults on purpose: which specs there are, and what the wrapped executor then does."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.faults import FaultyExecutor, parse_faults
from engine.policy import FirstComeFirstServed
from engine.request import SamplingParams, TokenLogprobs
from engine.scheduler import Scheduler
from engine.step import ScheduledRequest, StepPlan, StepResult
from engine.tape import ANY_PROMPT, TapeExecutor, TapeSpec
from tests.builders import EOS, FakeClock, make_config, make_request, run_to_end, tokens_of


class TwoRows:
    """Answers every step alike."""

    def __init__(self) -> None:
        self.resets = 0

    def submit(self, plan: StepPlan) -> TwoRows:
        self._step = plan.step
        return self

    def result(self) -> StepResult:
        return StepResult(self._step, (7, 8), {0: TokenLogprobs(-1.0), 1: TokenLogprobs(-2.0)})

    def reset(self) -> None:
        self.resets += 1


def step(spec: str, number: int) -> StepResult:
    return FaultyExecutor(TwoRows(), parse_faults(spec)).submit(StepPlan(number, ())).result()


@pytest.mark.parametrize(
    "spec",
    [
        *("", "raise", "raise@", "raise@x", "raise@-1", "burn@3", "raise@3,", "raise@1;nan@2:0", "raise@1 "),
        *("raise@3:1", "memory@3:0", "nan@3", "nan@3:", "nan@3:1.5", "nan@3:-1"),
        *("hang@3", "hang@3:inf", "hang@3+10"),
        *("poison", "poison:", "poison:x", "poison@3:7"),
    ],
)
def test_a_spec_that_says_nothing_clear_is_refused_by_its_part(spec: str) -> None:
    with pytest.raises(ValueError, match="not '"):
        parse_faults(spec)


@pytest.mark.parametrize(("kind", "error"), [("raise", RuntimeError), ("memory", MemoryError)])
def test_a_step_fails_once_or_from_then_on(kind: str, error: type[Exception]) -> None:
    for spec, failing in ((f"{kind}@3", [3]), (f"{kind}@3+", [3, 4, 5])):
        failed = []
        for number in range(1, 6):
            try:
                assert step(spec, number).token_ids == (7, 8)
            except error:
                failed.append(number)
        assert failed == failing


def test_a_row_that_is_not_finite_has_an_error_and_its_neighbour_none() -> None:
    result = step("nan@3:0", 3)
    assert (result.token_ids, result.errors) == ((None, 8), {0: "non_finite_logits"})
    assert result.logprobs == {1: TokenLogprobs(-2.0)}
    assert step("nan@3:0", 4).errors == {}
    assert step("nan@3:5", 3) == step("raise@9", 3)
    assert step("nan@3:0,nan@1+:1", 3).token_ids == (None, None)


def test_a_step_hangs_for_its_seconds() -> None:
    slept: list[float] = []
    executor = FaultyExecutor(TwoRows(), parse_faults("hang@2:10,hang@2+:0.5"), slept.append)
    for number in (1, 2, 3):
        assert executor.submit(StepPlan(number, ())).result().token_ids == (7, 8)
    assert slept == [10, 0.5, 0.5]


def test_a_step_that_computes_the_poison_ends_the_process() -> None:
    ended: list[int] = []
    executor = FaultyExecutor(TwoRows(), parse_faults("poison:7"), end=ended.append)
    for token_ids in ((5, 6), (6, 7, 8)):
        row = ScheduledRequest("r", token_ids, 0, (1,), None, SamplingParams(max_tokens=1))
        executor.submit(StepPlan(1, (row,)))
    assert ended == [1]


def test_a_reset_reaches_the_executor() -> None:
    inner = TwoRows()
    FaultyExecutor(inner, ()).reset()
    assert inner.resets == 1


def test_an_engine_lives_through_a_failed_step() -> None:
    config = make_config()
    tape = TapeExecutor(
        TapeSpec({ANY_PROMPT: (1, 2, 3)}), num_blocks=config.num_blocks, block_size=config.block_size
    )
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=[EOS])
    core = EngineCore(scheduler, FaultyExecutor(tape, parse_faults("raise@1")), FakeClock())
    request = make_request("a", [5] * 9, ignore_eos=True)
    core.add(request)
    before = run_to_end(core)["a"]
    core.add(request)
    after = run_to_end(core)["a"]
    assert before[-1].finish_reason == "error"
    assert tokens_of(after) == [1, 2, 3, EOS]
