"""`headrace kernels audit` as people run it, on every kernel that there is."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headrace
from kernels.audit.configurations import KERNELS, OPS, configurations
from kernels.audit.facts import facts_of
from kernels.audit.job import Answer, Job
from tests.kernels.audit_sample import ARCH, stored


def audit(*arguments: str) -> Result:
    return CliRunner().invoke(headrace.main, ["kernels", "audit", *arguments])


def told(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_the_quick_configurations_are_as_expected_for_sm_90() -> None:
    result = audit("--arch", "sm_90", "--json")
    answer = told(result)
    assert answer["failures"] == []
    assert result.exit_code == 0
    quick = configurations(is_quick=True)
    assert {row["configuration"] for row in answer["rows"]} == {c.name for c in quick}
    assert {row["op"] for row in answer["rows"]} == set(OPS)


@pytest.mark.soak
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_all_configurations_are_as_expected(arch: str) -> None:
    result = audit("--arch", arch, "--whole", "--json")
    answer = told(result)
    assert answer["failures"] == []
    assert {row["kernel"] for row in answer["rows"] if not row["note"]} >= set(KERNELS)
    assert {(row["op"], row["configuration"]) for row in answer["rows"]} == {
        (c.op, c.name) for c in configurations()
    }


class Stored:
    """A pool whose compiler always gives the same kernel."""

    def __init__(self, name: str) -> None:
        self.answer = Answer([facts_of(stored(name), ARCH)], 0.0)

    def answers(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        return (self.answer for _ in jobs)


@pytest.fixture
def _compiler(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    @contextmanager
    def compiling(num_workers: int | None) -> Iterator[Stored]:
        yield Stored(request.param)

    monkeypatch.setattr("kernels.audit.pool.compiling", compiling)


@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("_compiler", ["sound"], indirect=True)
def test_a_row_has_what_was_read_and_the_status_is_0() -> None:
    result = audit("--op", "rope", "--json")
    assert result.exit_code == 0, result.output
    (row,) = told(result)["rows"]
    assert row["registers"] == 40
    assert row["tensor"] == {"HMMA.16816.F32": 4}
    assert row["programs_a_processor"] == 12
    assert row["failures"] == []
    assert row["loop_reads"] == {"x_ptr": 64, "weight_ptr": 128}


@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("_compiler", ["spilling"], indirect=True)
def test_a_spill_is_named_and_the_status_is_1() -> None:
    result = audit("--op", "rope", "--op", "silu_mul", "--json")
    assert result.exit_code == 1
    failures = told(result)["failures"]
    assert failures[0] == (
        "rope float16 on sm_90 product_kernel: spills 24 bytes a thread, 12 loads and stores of them"
    )
    assert [line for line in result.stdout.splitlines() if line.startswith("missed: ")] == [
        f"missed: {failure}" for failure in failures
    ]


@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("_compiler", ["sound"], indirect=True)
def test_fp8_caches_are_not_for_sm_80() -> None:
    rows = told(audit("--arch", "sm_80", "--op", "kv_write", "--whole", "--json"))["rows"]
    notes = {row["configuration"]: row["note"] for row in rows}
    assert notes.pop("bfloat16, cache float8_e4m3fn") == "n/a: needs sm_89 or later"
    assert set(notes.values()) == {""}


def test_an_op_that_is_not_there_exits_2() -> None:
    result = audit("--op", "attention")
    assert result.exit_code == 2
    assert "no op attention: kv_write," in result.stderr


def test_without_triton_it_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = audit()
    assert result.exit_code == 2
    assert "needs triton" in result.stderr
