"""The check of a GPU, without one: what it judges, how it times, and that every line of it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import headrace
from kernels import roofline
from kernels.audit.bench_tensors import BenchTensors
from kernels.audit.calls import CALLS, Call
from kernels.commands import gpu_check_command
from kernels.gpu_check import bench, decode_step
from kernels.gpu_check.bench import Bench, Limits, Race
from kernels.gpu_check.benches import FULL, TINY, benches, races
from kernels.gpu_check.report import as_json, failures, line
from kernels.gpu_check.row import Row, that_it_ran
from kernels.gpu_check.session import DRY, GpuParts, checked, engine_row, parity_row
from kernels.parity.catalogue import OPS
from kernels.parity.runner import Row as ParityRow

LIMITS = Limits(copy_bytes_per_s=1e9, product_flops_per_s=1e12)
MOVES = Bench("silu_mul", "moves", {"num_tokens": 10, "inner": 100}, required=0.85)
MULTIPLIES = Bench(
    "attention_flash",
    "multiplies",
    {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "num_tokens": 4},
    is_of_products=True,
    required=0.6,
)


class FakeTimer:
    """Calls each once and says what it was told to."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self.num_called = 0

    def __call__(self, call: Call) -> float:
        call()
        self.num_called += 1
        return next(self._seconds)


@pytest.mark.parametrize(
    ("ratio", "required", "failure"),
    [
        (0.85, 0.85, None),
        (0.8499, 0.85, "bench x: 0.85 of copies, not 0.85"),
        (0.1, None, None),
        (None, 0.85, "bench x: not measured, at least 0.85 of copies is required"),
        (math.nan, 0.85, "bench x: nan of copies, not 0.85"),
    ],
)
def test_a_ratio_is_enough_or_missed(
    ratio: float | None, required: float | None, failure: str | None
) -> None:
    assert Row("bench", "x", ratio=ratio, unit="of copies", required=required).failure == failure


def test_a_fault_is_a_failure_whatever_was_measured() -> None:
    assert Row("bench", "x", ratio=2.0, required=1.0, fault="crashed").failure == "bench x: crashed"


def test_a_dry_run_keeps_faults_and_nothing_measured() -> None:
    slow = Row("bench", "x", "9 us", ratio=0.1, unit="of copies", required=0.85)
    assert that_it_ran(slow) == Row("bench", "x", "ran")
    assert that_it_ran(Row("graph", "y", fault="z")) == Row("graph", "y", fault="z")


def test_bytes_are_held_to_the_copies() -> None:
    seconds = 3 * 10 * 100 * 2 / 1e9  # gate, up and product of two bytes each, at the speed of a copy
    assert bench.row(MOVES, seconds, None, LIMITS).ratio == pytest.approx(1.0)
    found = bench.row(MOVES, 2 * seconds, 5e-6, LIMITS)
    assert found.ratio == pytest.approx(0.5)
    assert found.failure == "bench silu_mul moves: 0.5 of copy bandwidth, not 0.85"
    assert found.told == "12.0 us;  5.0 us"


def test_products_are_held_to_the_matmul_and_a_causal_mask_halves_them() -> None:
    flops = 4 * 2 * 64 * (4 * 5 // 2)
    found = bench.row(MULTIPLIES, flops / 1e12 / 0.5, None, LIMITS)
    assert (found.ratio, found.unit) == (pytest.approx(0.5), "of the matmul rate")
    assert found.failure is not None


def test_a_race_is_won_by_the_stated_factor() -> None:
    race = Race("W4A16", lambda: None, lambda: None, "torch", 3.0)
    assert bench.run_race(race, FakeTimer(1e-5, 3e-5)).failure is None
    assert bench.run_race(race, FakeTimer(1e-5, 2.9e-5)).failure == (
        "bench W4A16: 2.9 times as fast as torch, not 3"
    )


def test_limits_count_what_is_read_and_what_is_written() -> None:
    timer = FakeTimer(2.0, 4.0)
    found = bench.limits(BenchTensors("cpu"), timer, copied_numbers=100, matmul_size=8)
    assert found == Limits(copy_bytes_per_s=200.0, product_flops_per_s=256.0)


def test_every_required_ratio_is_at_the_full_shapes() -> None:
    required = {one.name: one.required for one in benches(FULL) if one.required is not None}
    assert required == {"batch": 0.85, "causal": 0.60, "two chunks": 0.45}
    assert {race.name: race.required for race in races(TINY, BenchTensors("cpu")) if race.required} == {
        "W4A16 one token": 3.0
    }


def test_every_bench_has_a_call_and_a_formula() -> None:
    for one in benches(FULL):
        assert one.op in CALLS
        assert getattr(roofline, one.op)(**one.arguments).num_bytes > 0


def test_a_decode_step_that_is_replayed_has_the_same_tokens() -> None:
    assert decode_step.check(3, "cpu", lambda work: work).failure is None


def test_a_replay_that_does_nothing_is_found() -> None:
    def captures_once(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    found = decode_step.check(3, "cpu", captures_once)
    assert found.failure is not None
    assert "of 3 tokens are not those of the kernels one by one" in found.failure


def test_a_part_that_raises_or_is_not_reached_has_failed() -> None:
    now = iter([0.0, 5.0, 10.0])

    def breaks() -> list[Row]:
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    parts = [
        ("bench", "a", breaks),
        ("bench", "b", lambda: [Row("bench", "b")]),
        ("graph", "c", lambda: [Row("graph", "c")]),
    ]
    assert failures(list(checked(parts, lambda: next(now), deadline_s=10.0))) == [
        "bench a: RuntimeError: CUDA error: an illegal memory access",
        "graph c: not reached in time",
    ]


def test_without_the_device_s_limits_nothing_is_held_to_them() -> None:
    parts = GpuParts("cpu", "sm_80", FakeTimer(), lambda work: work, None, DRY).all()
    without_limits = [part for part in parts if part[1] == "silu_mul gate and up"]
    (found,) = checked(without_limits, lambda: 0.0, 1.0)
    assert found.failure == "bench silu_mul gate and up: RuntimeError: the device's limits are not known"


def parity_failure(near_ties: int = 0, failure: str | None = None) -> ParityRow:
    return ParityRow("sample", "usual", "reference", 0, 1e-3, 1e-3, (4,), failure, near_ties)


def test_parity_of_an_op_is_one_row_that_counts_near_ties() -> None:
    assert parity_row("sample", [parity_failure(2), parity_failure(1)]).told == (
        "2 outputs, worst error 1.0e-03, 3 near ties"
    )
    found = parity_row("sample", [parity_failure(), parity_failure(failure="too far")])
    assert found.failure == (
        "parity sample: 1 missed, first sample usual: output 0 against reference at [4]: too far"
    )


def test_the_engine_s_tokens_fail_at_a_difference_that_is_no_near_tie() -> None:
    assert engine_row([parity_failure()]).told.endswith("1 near ties")
    assert engine_row([parity_failure()]).failure is None
    assert engine_row([parity_failure(failure="token 3, not 4")]).failure is not None


def test_json_has_no_nan_and_a_dry_run_has_checked_nothing() -> None:
    rows = [Row("bench", "x", ratio=math.nan, unit="u", required=1.0)]
    assert json.loads(json.dumps(as_json(rows, is_dry=False, about={"gpu": "g"}), allow_nan=False)) == {
        "checked": True,
        "gpu": "g",
        "rows": [
            {
                "part": "bench",
                "name": "x",
                "told": "",
                "ratio": None,
                "unit": "u",
                "required": 1.0,
                "fault": None,
                "failure": "bench x: nan u, not 1",
            }
        ],
        "failures": ["bench x: nan u, not 1"],
    }
    assert as_json([], is_dry=True, about={})["checked"] is False
    assert line(Row("bench", "x", "t", 0.5, "u", 0.85)) == ("bench", "x", "t", "0.50 u", "0.85", "missed")


def gpu_check(*arguments: object) -> Result:
    return CliRunner().invoke(headrace.main, ["kernels", "gpu-check", *map(str, arguments)])


def told(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_without_a_gpu_nothing_is_checked_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = gpu_check("--json", "--out", tmp_path / "gpu.json")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"no GPU: nothing was checked (torch {torch.__version__} sees none)\n")
    assert told(result) == {"checked": False, "rows": [], "failures": []}
    assert json.loads((tmp_path / "gpu.json").read_text()) == told(result)


def test_a_file_that_has_no_place_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: pytest.fail("it began"))
    result = gpu_check("--out", tmp_path / "none" / "gpu.json")
    assert result.exit_code == 2
    assert "no folder that can be written to" in result.stderr


def test_a_full_disk_costs_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = gpu_check("--json", "--out", "/dev/full")
    assert result.exit_code == 2
    assert "/dev/full cannot be written" in result.stderr
    assert told(result)["checked"] is False


def test_a_dry_run_runs_every_part_and_claims_nothing() -> None:
    result = gpu_check("--dry-run", "--json")
    assert result.exit_code == 0, result.output
    answer = told(result)
    assert (answer["checked"], answer["failures"]) == (False, [])
    assert {row["told"] for row in answer["rows"]} == {"ran"}
    assert {row["ratio"] for row in answer["rows"]} == {None}
    assert [row["name"] for row in answer["rows"] if row["part"] == "parity"] == list(OPS)
    assert {row["part"] for row in answer["rows"]} == {"bench", "graph", "engine", "parity"}


def test_what_is_missed_exits_1_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row("bench", "decode", ratio=0.5, unit="of copies", required=0.85), Row("graph", "step")]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(gpu_check_command, "_run", lambda is_dry, max_seconds: (rows, {"gpu": "g"}))
    result = gpu_check("--json")
    assert result.exit_code == 1
    assert "missed: bench decode: 0.5 of copies, not 0.85" in result.stdout
    assert told(result)["failures"] == ["bench decode: 0.5 of copies, not 0.85"]
    monkeypatch.setattr(gpu_check_command, "_run", lambda is_dry, max_seconds: (rows[1:], {"gpu": "g"}))
    assert gpu_check().exit_code == 0
