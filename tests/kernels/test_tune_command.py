"""`headrace kernels tune` as people run it, where there is no GPU: a ranking, and it says so."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headrace
from kernels.audit.facts import facts_of
from kernels.audit.job import Answer, Job
from kernels.tune import measurement, table
from kernels.tune.search import Scored
from kernels.tune.session import chosen
from kernels.tune.table import RANKED, load
from tests.kernels.audit_sample import ARCH, stored


class Compiler:
    """Tiles of 16 keys spill, all others compile to the same but for their grid, drawn from the job."""

    def __init__(self) -> None:
        self._facts = replace(facts_of(stored("sound"), ARCH), kernel="_attend")
        self.jobs: list[Job] = []

    def answers(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        for job in jobs:
            self.jobs.append(job)
            grid = (132 + zlib.crc32(str(job.arguments).encode()) % 500,)
            spills = 8 if job.arguments["tile"][1] == 16 else 0
            yield Answer([replace(self._facts, grid=grid, spill_bytes=spills)], 0.0)


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    found = Compiler()

    @contextmanager
    def compiling() -> Iterator[Compiler]:
        yield found

    monkeypatch.setattr("kernels.audit.pool.compiling", compiling)
    monkeypatch.setattr(measurement, "arch_in_use", lambda: None)
    monkeypatch.setattr(table.save, "__defaults__", (tmp_path,))
    monkeypatch.setattr(table.load, "__defaults__", (tmp_path,))
    monkeypatch.setattr(table.check_writable, "__defaults__", (tmp_path,))
    return found


def tune(*arguments: str) -> Result:
    common = ("--op", "attention_decode", "--model", "llama", "--generations", "2", "--population", "6")
    return CliRunner().invoke(headrace.main, ["kernels", "tune", *common, *arguments])


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["failures"] == []
    found: list[dict[str, Any]] = answer["rows"]
    return found


def test_it_ranks_and_says_that_it_only_ranks() -> None:
    result = tune("--json")
    found = rows(result)
    assert len(found) == 3
    assert {(row["arch"], row["gpu"], row["basis"]) for row in found} == {("sm_90", "h100", RANKED)}
    assert f"{RANKED} (h100)" in result.stdout
    assert all(row["choice"]["num_keys"] != 16 and row["cost_us"] <= row["start_us"] for row in found)
    assert all(row["candidates"] <= 6 + 2 * 5 for row in found)


def test_equal_seeds_search_equally(compiler: Compiler) -> None:
    one = rows(tune("--json"))
    asked = list(compiler.jobs)
    compiler.jobs.clear()
    assert rows(tune("--json")) == one
    assert compiler.jobs == asked
    compiler.jobs.clear()
    rows(tune("--json", "--seed", "1"))
    assert compiler.jobs != asked


def test_a_shape_s_search_does_not_depend_on_which_others_are_asked() -> None:
    alone = rows(tune("--json"))
    both = rows(tune("--json", "--model", "smollm"))
    assert [row for row in both if row["problem"].startswith("llama")] == alone


def test_it_compiles_for_the_architecture_that_was_asked(compiler: Compiler) -> None:
    (row, *_) = rows(tune("--json", "--arch", "sm_80"))
    assert {job.arch for job in compiler.jobs} == {"sm_80"}
    assert (row["arch"], row["gpu"]) == ("sm_80", "a100")


def test_what_it_writes_the_table_has(tmp_path: Path) -> None:
    found = rows(tune("--json", "--write"))
    written = load("sm_90", tmp_path)
    assert len(written.entries) == 3
    for row in found:
        entry = written.find("attention_decode", row["shape"])
        assert entry is not None
        assert (entry.is_exact, entry.entry.choice, entry.entry.basis) == (True, row["choice"], RANKED)
        assert set(entry.entry.versions) == {"torch", "triton"}


@pytest.mark.parametrize(
    "content", [b'{"arch": "sm_90", "entr', b"\xff", b'{"arch": "sm_80", "entries": []}']
)
def test_a_table_that_is_none_ends_it_before_the_search(
    content: bytes, compiler: Compiler, tmp_path: Path
) -> None:
    (tmp_path / "sm_90.json").write_bytes(content)
    result = tune("--write")
    assert (result.exit_code, compiler.jobs) == (2, [])
    assert "sm_90.json" in result.stderr
    assert (tmp_path / "sm_90.json").read_bytes() == content


def test_a_folder_that_cannot_be_written_ends_it_before_the_search(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table.check_writable, "__defaults__", (tmp_path / "not" / "there",))
    result = tune("--write")
    assert (result.exit_code, compiler.jobs) == (2, [])
    assert "cannot be written" in result.stderr


def test_a_table_that_cannot_be_put_there_at_the_end_costs_no_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table.save, "__defaults__", (tmp_path / "not" / "there",))
    result = tune("--write", "--json")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert len(json.loads(result.stdout.splitlines()[-1])["rows"]) == 3


def test_a_shape_for_which_nothing_can_be_exits_1(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Answer([], 0.0, "CompilationError: no")
    monkeypatch.setattr(compiler, "answers", lambda jobs: [broken for _ in jobs])
    result = tune("--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["failures"][0] == "attention_decode llama, 1 of 32768 keys: no candidate can be"


@pytest.mark.parametrize(
    ("best", "start", "expected"),
    [(90.0, 100.0, 90.0), (96.0, 100.0, 100.0), (96.0, math.inf, 96.0), (math.inf, math.inf, None)],
)
def test_what_is_used_today_stays_unless_something_is_better_by_a_margin(
    best: float, start: float, expected: float | None
) -> None:
    today = Scored(start, (2,))
    found = chosen([Scored(best, (1,)), today], today, margin=0.05)
    assert (None if found is None else found.cost) == expected
