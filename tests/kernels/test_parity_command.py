"""`headrace kernels parity` as people run it: what it prints, what it keeps, how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headrace
from kernels import rope as rope_module
from kernels.commands import parity_command
from kernels.parity import catalogue

REPOSITORY = Path(__file__).parents[2]
TINY = REPOSITORY / "tests" / "data" / "tiny"


def parity(*arguments: object) -> Result:
    return CliRunner().invoke(headrace.main, ["kernels", "parity", *map(str, arguments)])


def told(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture
def _wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """RoPE turns by half of what it should."""
    right = rope_module.rope

    def wrong(x: Any, cos: Any, sin: Any, positions: Any, **others: Any) -> Any:
        return right(x, cos, sin / 2, positions, **others)

    monkeypatch.setattr(rope_module, "rope", wrong)


def test_an_op_that_holds_exits_0_with_a_row_for_each_case() -> None:
    result = parity("--op", "rope", "--json")
    assert result.exit_code == 0, result.output
    answer = told(result)
    assert answer["failures"] == []
    cases = [case.name for case in catalogue.cases_of("rope", whole=False)]
    assert [row["case"] for row in answer["rows"]] == cases
    assert {(row["op"], row["against"], row["failure"]) for row in answer["rows"]} == {
        ("rope", "reference", None)
    }


@pytest.mark.usefixtures("_wrong_way")
def test_an_op_that_is_wrong_exits_1_names_it_and_keeps_nothing(tmp_path: Path) -> None:
    result = parity("--op", "rope", "--save", tmp_path / "f", "--json")
    assert result.exit_code == 1
    assert "missed: rope float32 T=3 heads=5 D=64: output 0 against reference at [" in result.stdout
    assert len(told(result)["failures"]) == len(told(result)["rows"])
    assert not (tmp_path / "f").exists()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("stored") / "f"
    result = parity("--op", "rope", "--op", "silu_mul", "--save", file)
    assert result.exit_code == 0, result.output
    return file


def test_what_was_kept_is_what_the_same_code_says(stored: Path) -> None:
    result = parity("--op", "rope", "--against", stored, "--exact", "--json")
    assert result.exit_code == 0, result.output
    assert {row["op"] for row in told(result)["rows"]} == {"rope"}
    assert {(row["against"], row["index"]) for row in told(result)["rows"]} == {("stored", None)}
    assert "within tolerance but" not in result.stdout


@pytest.mark.usefixtures("_wrong_way")
def test_other_code_is_told_apart_from_it(stored: Path) -> None:
    result = parity("--op", "rope", "--op", "silu_mul", "--against", stored)
    assert result.exit_code == 1
    missed = [line for line in result.stdout.splitlines() if line.startswith("missed: ")]
    assert missed[0].startswith("missed: rope float32 T=3 heads=5 D=64: output 0 against stored at [")
    assert not any("silu_mul" in line for line in missed)


@pytest.fixture
def _no_ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only the model: its greedy tokens."""
    kept = dict(catalogue.OPS)
    catalogue.OPS.clear()
    yield
    catalogue.OPS.update(kept)


@pytest.mark.usefixtures("_no_ops")
def test_greedy_tokens_of_the_tiny_model_are_kept_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    assert parity("--save", file).exit_code == 0
    result = parity("--against", file, "--json")
    assert result.exit_code == 0, result.output
    assert [row["op"] for row in told(result)["rows"]] == ["greedy"] * 8
    record = headrace.greedy_record(str(TINY), [(5, 6, 7)])
    monkeypatch.setattr("engine.greedy_record.greedy_record", lambda model, prompts: record * len(prompts))
    other = parity("--against", file, "--json")
    assert other.exit_code == 1
    assert told(other)["failures"][0].startswith("greedy prompt 0: output 0 against stored at [")


@pytest.mark.usefixtures("_no_ops")
def test_a_model_that_is_not_there_exits_2(tmp_path: Path) -> None:
    result = parity("--save", tmp_path / "f", "--greedy-model", tmp_path / "none")
    assert result.exit_code == 2
    assert "was not found" in result.stderr


@pytest.mark.usefixtures("_no_ops")
def test_where_no_model_is_found_one_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_command, "TINY_MODEL", tmp_path / "none")
    result = parity("--save", tmp_path / "f")
    assert result.exit_code == 2
    assert "name one with --greedy-model" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--against", "{}/none"], "cannot be read"),
        (["--op", "rope", "--save", "{}/none/f"], "no folder that can be written to"),
        (["--save", "a", "--against", "b"], "exclude each other"),
        (["--exact"], "goes with --against"),
        (["--op", "attention"], "is not one of"),
    ],
)
def test_what_cannot_run_exits_2_and_says_why(arguments: list[str], why: str, tmp_path: Path) -> None:
    result = parity(*(argument.format(tmp_path) for argument in arguments))
    assert result.exit_code == 2
    assert why in result.stderr


def test_it_interprets_by_itself_where_there_is_no_gpu() -> None:
    """In a process where nobody said so before."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "kernels", "parity", "--op", "silu_mul"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert "silu_mul" in run.stdout
