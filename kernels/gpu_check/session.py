"""One run of the check: its parts one after the other, until the time is up.

A part that raises has failed, and the others are still of interest. What the time did not reach has failed,
too: it was not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from kernels.audit.bench_tensors import BenchTensors
from kernels.cuda_graph import Capture
from kernels.gpu_check import bench, decode_step
from kernels.gpu_check.benches import FULL, TINY, Shapes, benches, races
from kernels.gpu_check.row import Row
from kernels.parity.catalogue import OPS, cases_of
from kernels.parity.runner import Row as ParityRow
from kernels.parity.runner import check as check_case
from kernels.parity.store import GreedyAnswers, answers_of, greedy_rows

Part = tuple[str, str, Callable[[], Sequence[Row]]]
"""Part and name, as its rows have them, and what makes these."""
Greedy = Callable[[str], GreedyAnswers]
"""Backend → the tiny model's greedy tokens by it; raises ValueError."""


@dataclass(frozen=True)
class Bounds:
    """How much is done."""

    shapes: Shapes
    graph_sizes: tuple[int, ...]
    cases_an_op: int | None
    """Of parity; None: the quick grid."""


ON_GPU = Bounds(FULL, (1, 8, 64), None)
DRY = Bounds(TINY, (3,), 1)


def checked(parts: Sequence[Part], clock: Callable[[], float], deadline_s: float) -> Iterator[Row]:
    for part, name, work in parts:
        if clock() >= deadline_s:
            yield Row(part, name, fault="not reached in time")
            continue
        try:
            yield from work()
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            yield Row(part, name, fault=f"{type(error).__name__}: {first}")


class GpuParts:
    """All parts on one device. Measures its limits first, which the benches are held to."""

    def __init__(
        self,
        device: str,
        arch: str,
        timer: bench.Timer,
        capture: Capture,
        greedy: Greedy | None,
        bounds: Bounds,
    ) -> None:
        self._device = device
        self._arch = arch
        self._timer = timer
        self._capture = capture
        self._greedy = greedy
        self._bounds = bounds
        self._limits: bench.Limits | None = None

    def all(self) -> list[Part]:
        """Speed first, then what is right: a kernel that is wrong fails either way."""
        bounds = self._bounds
        return [
            ("bench", "limits of the device", self._measure_limits),
            *(("bench", f"{one.op} {one.name}", partial(self._bench, one)) for one in benches(bounds.shapes)),
            ("bench", "matmul_quant", self._races),
            *(("graph", f"decode step of {size}", partial(self._graph, size)) for size in bounds.graph_sizes),
            ("engine", "greedy tokens", self._engine),
            *(("parity", op, partial(self._parity, op)) for op in OPS),
        ]

    def _measure_limits(self) -> list[Row]:
        shapes = self._bounds.shapes
        found = bench.limits(
            BenchTensors(self._device),
            self._timer,
            copied_numbers=shapes.copied_numbers,
            matmul_size=shapes.matmul_size,
        )
        self._limits = found
        copies, products = found.copy_bytes_per_s / 1e9, found.product_flops_per_s / 1e12
        return [Row("bench", "limits of the device", f"{copies:,.0f} GB/s copied, {products:,.1f} TFLOP/s")]

    def _bench(self, one: bench.Bench) -> list[Row]:
        if self._limits is None:
            raise RuntimeError("the device's limits are not known")
        return [bench.run(one, BenchTensors(self._device), self._arch, self._limits, self._timer)]

    def _races(self) -> list[Row]:
        tensors = BenchTensors(self._device)
        return [bench.run_race(race, self._timer) for race in races(self._bounds.shapes, tensors)]

    def _graph(self, size: int) -> list[Row]:
        return [decode_step.check(size, self._device, self._capture)]

    def _engine(self) -> list[Row]:
        if self._greedy is None:
            raise ValueError("no model: tests/data/tiny of a checkout is asked")
        by_cpu, here = (answers_of(self._greedy(backend)) for backend in ("cpu", "triton"))
        return [engine_row(list(greedy_rows(by_cpu, here)))]

    def _parity(self, op: str) -> list[Row]:
        cases = islice(cases_of(op, whole=False), self._bounds.cases_an_op)
        rows = [row for case in cases for row in check_case(case, torch.device(self._device))]
        return [parity_row(op, rows)]


def engine_row(rows: Sequence[ParityRow]) -> Row:
    """Of the prompts' rows."""
    failures = [row.told for row in rows if row.failure is not None]
    near_ties = sum(row.failure is None and row.index is not None for row in rows)
    told = f"{len(rows)} prompts against the CPU path in float32, {near_ties} near ties"
    return Row("engine", "greedy tokens", told, fault=failures[0] if failures else None)


def parity_row(op: str, rows: Sequence[ParityRow]) -> Row:
    failures = [row.told for row in rows if row.failure is not None]
    worst = max((row.relative for row in rows), default=0.0)
    near_ties = sum(row.near_ties for row in rows)
    told = f"{len(rows)} outputs, worst error {worst:.1e}" + (f", {near_ties} near ties" if near_ties else "")
    fault = f"{len(failures)} missed, first {failures[0]}" if failures else None
    return Row("parity", op, told, fault=fault)
