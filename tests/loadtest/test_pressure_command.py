"""`headrace bench pressure` as its user meets it: options, table, JSON, exit status."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from engine.step import StepPlan
from engine.tape import TapeExecutor
from loadtest.bench_command import bench
from tests.builders_model import TINY

KEYS = {
    "requests", "leaked_blocks", "differing", "near_ties", "running", "waiting", "errors", "max_preemptions",
}  # fmt: skip


def call(*arguments: str, model: str = "tape:", requests: int = 30) -> Result:
    options = ["pressure", "--model", model, "--requests", str(requests), *arguments]
    return CliRunner().invoke(bench, options, catch_exceptions=False)


def test_a_tape_loses_nothing_and_the_last_line_is_json() -> None:
    result = call("--kv-blocks", "16", "--seed", "1", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures.keys() >= KEYS
    assert figures["requests"] == 30
    assert sum(figures[key] for key in KEYS - {"requests", "max_preemptions"}) == 0
    assert "leaked blocks" in result.stdout
    assert "answers, each sibling one" in result.stdout
    assert "near ties" in result.stdout


@pytest.mark.parametrize("flags", [["--deterministic"], ["--dtype", "float32"]])
def test_a_model_answers_under_pressure_as_alone(flags: list[str]) -> None:
    load = ["--kv-blocks", "16", "--seed", "2"]
    result = call(*flags, *load, "--json", model=str(TINY), requests=16)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["same"] > 20
    assert figures["deterministic"] == (flags == ["--deterministic"])


def test_the_seed_makes_the_load() -> None:
    steps = [json.loads(call("--json", "--seed", seed).stdout.splitlines()[-1])["steps"] for seed in "112"]
    assert steps[0] == steps[1] != steps[2]


def test_what_is_lost_exits_1_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = TapeExecutor.submit

    def mixed(tape: TapeExecutor, plan: StepPlan) -> Any:
        result = submit(tape, plan).result()
        if len(plan.scheduled) > 6 and result.token_ids[0] is not None:
            result = replace(result, token_ids=(result.token_ids[0] ^ 1, *result.token_ids[1:]))
        return SimpleNamespace(result=lambda: result)

    monkeypatch.setattr(TapeExecutor, "submit", mixed)
    result = call("--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[-1])["differing"] > 0
    assert "differs from its solo run" in result.stderr


def test_too_few_requests_for_pressure_exit_1_and_say_so() -> None:
    result = call("--json", requests=3)
    assert result.exit_code == 1
    assert not json.loads(result.stdout.splitlines()[-1])["held"]
    assert "is no pressure; add --requests" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "model", "line"),
    [
        ([], "nowhere.gguf", "--model nowhere.gguf: model 'nowhere.gguf' was not found"),
        (["--deterministic", "--dtype", "bfloat16"], "tape:", "--deterministic computes in float32"),
    ],
)
def test_what_cannot_run_exits_2_with_one_line(arguments: list[str], model: str, line: str) -> None:
    result = call(*arguments, model=model)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("headrace bench pressure: ")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", [["--requests", "0"], ["--kv-blocks", "15"], ["--dtype", "float16"]])
def test_a_bad_option_exits_2_and_is_named(option: list[str]) -> None:
    result = call(*option)
    assert result.exit_code == 2
    assert option[0] in result.stderr


def test_a_context_too_short_to_press_on_cannot_run() -> None:
    result = call(model="tape:?max_model_len=2")
    assert result.exit_code == 2
    assert "a context of 2 tokens is too short to press on" in result.stderr
