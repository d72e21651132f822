"""`bench pressure` on a tape: nothing is lost by a sound engine, and each planted fault is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from engine.block_allocator import BlockAllocator
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executor import Done
from engine.loading.tape_model import TapeModel
from engine.request import RequestOutput
from engine.request_state import RequestState
from engine.step import StepPlan, StepResult
from engine.tape import TapeExecutor, TapeSpec
from loadtest.bench_setup import BenchParts
from loadtest.pressure.bench import PressureBench
from loadtest.pressure.bounds import missed_bounds
from loadtest.pressure.load import Case, Departure, PressureLoad, make_cases
from loadtest.pressure.run import Client
from loadtest.pressure.tape import with_own_answers
from tests.builders import make_request

LOAD = PressureLoad(num_requests=150, max_prompt=120, max_output=120, seed=3)
CONFIG = EngineConfig(num_blocks=32, max_model_len=496, max_num_seqs=24, max_num_batched_tokens=48)
CLEAN = {
    "leaked_blocks": 0,
    "differing": 0,
    "near_ties": 0,
    "apart": 0,
    "running": 0,
    "waiting": 0,
    "errors": 0,
}


class Tape(TapeExecutor):
    """Lets a test change what a step brings."""

    def changed(self, plan: StepPlan, result: StepResult) -> StepResult:
        return result

    def submit(self, plan: StepPlan) -> Any:
        return Done(self.changed(plan, super().submit(plan).result()))


def run(
    load: PressureLoad = LOAD, tape: type[Tape] = Tape, max_steps: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The figures, and the lines on what was lost."""
    source = TapeModel(TapeSpec({}))
    cases = make_cases(load, vocab_size=source.config.vocab_size, block_size=CONFIG.block_size)
    source = with_own_answers(source, cases)
    executor = tape(source.tape, num_blocks=CONFIG.num_blocks, block_size=CONFIG.block_size)
    bench = PressureBench(BenchParts(source, CONFIG, "float32", "float32", executor), tolerance=None)
    return bench.run(cases, max_steps), bench.losses


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    figures, losses = run()
    assert losses == []
    return figures


def test_a_sound_engine_loses_nothing(figures: dict[str, Any]) -> None:
    assert {key: figures[key] for key in CLEAN} == CLEAN
    assert figures["held"]
    assert figures["requests"] == 150


def test_the_pressure_is_real(figures: dict[str, Any]) -> None:
    assert figures["peak_demand"] >= 3
    assert figures["preemptions"] >= 5
    assert 1 <= figures["max_preemptions"] <= 3
    assert figures["hit_rate"] > 0.05
    assert figures["answers"] > 200
    assert figures["same"] > 0.85 * figures["answers"]


def test_clients_leave_in_every_state(figures: dict[str, Any]) -> None:
    states = {"waiting", "prefill", "prefill, in flight", "preempted", "decoding", "decoding, in flight"}
    assert figures["aborted"].keys() == states
    assert sum(figures["aborted"].values()) > 0.2 * 150


def test_an_answer_that_the_batch_changed_differs() -> None:
    class Mixed(Tape):
        def changed(self, plan: StepPlan, result: StepResult) -> StepResult:
            if len(plan.scheduled) < 8:
                return result
            first, *others = result.token_ids
            return structs.replace(result, token_ids=(first and first ^ 1, *others))

    figures, losses = run(tape=Mixed)
    assert figures["differing"] > 0
    assert not figures["held"]
    assert any(line.endswith("differs from its solo run") for line in losses)


def test_a_sibling_that_reads_another_one_s_block_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy-on-write that is forgotten: the copies of a plan are not made."""

    class Careless(Tape):
        def submit(self, plan: StepPlan) -> Any:
            return super().submit(StepPlan(plan.step, plan.scheduled, (), plan.preempted))

    figures, _ = run(tape=Careless)
    assert figures["differing"] + figures["errors"] > 0
    assert not figures["held"]


def test_a_row_that_failed_is_an_error() -> None:
    class Failing(Tape):
        def changed(self, plan: StepPlan, result: StepResult) -> StepResult:
            if len(plan.scheduled) < 8 or result.token_ids[0] is None:
                return result
            _, *others = result.token_ids
            siblings = {row: drawn for row, drawn in result.siblings.items() if row}
            errors = {0: "non_finite_logits"}
            return structs.replace(result, token_ids=(None, *others), errors=errors, siblings=siblings)

    figures, losses = run(tape=Failing)
    assert figures["errors"] == len(losses) >= 1
    assert losses[0].endswith("non_finite_logits")
    assert not figures["held"]


def test_a_block_that_is_not_given_back_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    release = BlockAllocator.release
    forgotten: list[int] = []

    def leak(blocks: BlockAllocator, state: RequestState) -> None:
        if state.block_table and not forgotten:
            forgotten.append(state.block_table.pop())
        release(blocks, state)

    monkeypatch.setattr(BlockAllocator, "release", leak)
    figures, losses = run()
    assert figures["leaked_blocks"] > 0
    assert f"block {forgotten[0]} has ref count 1, but 0 holders" in losses[0]
    assert not figures["held"]


def test_a_lost_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = EngineCore.step
    lost: list[RequestOutput] = []

    def lose(core: EngineCore) -> list[RequestOutput]:
        outputs = step(core)
        if not lost and outputs and outputs[0].first_output_index == 1 and outputs[0].finish_reason is None:
            lost.append(outputs.pop(0))
        return outputs

    monkeypatch.setattr(EngineCore, "step", lose)
    figures, losses = run()
    assert f"{lost[0].request_id}, sibling 0: output 2 came where 1 was next" in losses
    assert not figures["held"]


def test_an_answer_that_the_engine_gave_up_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    step = EngineCore.step
    given_up: list[RequestOutput] = []

    def give_up(core: EngineCore) -> list[RequestOutput]:
        outputs = step(core)
        if not given_up and outputs and outputs[0].finish_reason is None and outputs[0].first_output_index:
            given_up.append(outputs[0])
            outputs += core.abort(outputs[0].request_id)
        return outputs

    monkeypatch.setattr(EngineCore, "step", give_up)
    figures, losses = run()
    name = f"{given_up[0].request_id}, sibling 0"
    assert f"{name}: it was given up, and its client had stayed" in losses
    assert not figures["held"]


def test_siblings_that_were_given_up_with_another_one_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    abort = EngineCore.abort
    monkeypatch.setattr(EngineCore, "abort", lambda core, request_id, sibling=None: abort(core, request_id))
    figures, losses = run()
    assert any(line.endswith("it was given up, and its client had stayed") for line in losses)
    assert not figures["held"]


@pytest.mark.parametrize(("sibling", "given_up"), [(None, [True, True]), (1, [False, True])])
def test_an_answer_is_given_up_once_its_own_client_left(sibling: int | None, given_up: list[bool]) -> None:
    request = make_request("r", n=2)
    client = Client(Case(request, (), Departure("decoding", 1, False, sibling)), lambda token_id: b"")
    assert [client.has_left(place) for place in range(2)] == [False, False]
    client.left_in = "decoding"
    assert [client.has_left(place) for place in range(2)] == given_up


def test_requests_that_never_end_are_told_as_running_or_waiting() -> None:
    figures, losses = run(max_steps=20)
    assert figures["running"] > 0
    assert figures["waiting"] > 0
    assert any(line.endswith("it never ended") for line in losses)
    assert not figures["held"]


def test_a_load_that_brings_no_pressure_shows_nothing() -> None:
    figures, losses = run(replace(LOAD, num_requests=3))
    assert losses == []
    assert figures["peak_demand"] < 3
    assert not figures["held"]


def test_an_empty_run_is_not_held() -> None:
    figures, _ = run(replace(LOAD, num_requests=0))
    assert figures["answers"] == 0
    assert not figures["held"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("leaked_blocks", 1),
        ("differing", 1),
        ("running", 1),
        ("waiting", 1),
        ("errors", 1),
        ("max_preemptions", 4),
        ("apart", 1),
        ("peak_demand", 2.99),
        ("preemptions", 0),
    ],
)
def test_each_bound_that_is_missed_is_named(figures: dict[str, Any], key: str, value: float) -> None:
    assert missed_bounds(figures) == []
    (line,) = missed_bounds({**figures, key: value})
    assert line.startswith(f"{key}: {value}")


def test_what_is_allowed_is_held(figures: dict[str, Any]) -> None:
    allowed = {"max_preemptions": 3, "near_ties": 5, "apart": 2, "max_apart": 2, "peak_demand": 3.0}
    assert missed_bounds({**figures, **allowed, "preemptions": 1}) == []


def test_a_refused_request_is_an_error() -> None:
    figures, losses = run(replace(LOAD, num_requests=10, max_prompt=2000))
    assert figures["errors"] == len(losses) > 0
    assert "was refused" in losses[0]
