"""How fast each op is, beside what the same device reaches: its copies, its matmuls, torch's own operation.

Bytes and operations are those of `kernels/roofline.py`: what has to move, not what a kernel moves again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.audit.bench_tensors import BenchTensors
from kernels.audit.calls import CALLS, Call
from kernels.gpu_check.row import Row
from kernels.roofline import WORK

Timer = Callable[[Call], float]
"""Runs a call as often as it takes; the median of its seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What this device reaches, measured."""

    copy_bytes_per_s: float
    """Read and written, each counted."""
    product_flops_per_s: float
    """Of a large bfloat16 matmul; a multiplication with its addition counts two."""


@dataclass(frozen=True)
class Bench:
    """One op at one shape."""

    op: str
    name: str
    arguments: dict[str, Any]
    """Of the op's functions in `kernels/audit/calls.py` and `kernels/roofline.py`."""
    is_of_products: bool = False
    """Held to the rate of products; else to that of copies."""
    required: float | None = None
    """The least share of that."""
    rival: Callable[[BenchTensors], Call] | None = None
    rival_name: str = ""


def run(bench: Bench, tensors: BenchTensors, arch: str, limits: Limits, timer: Timer) -> Row:
    seconds = timer(CALLS[bench.op](tensors, arch, **bench.arguments))
    rival_seconds = None if bench.rival is None else timer(bench.rival(tensors))
    return row(bench, seconds, rival_seconds, limits)


def row(bench: Bench, seconds: float, rival_seconds: float | None, limits: Limits) -> Row:
    work = WORK[bench.op](**bench.arguments)
    if bench.is_of_products:
        ratio, unit = work.product_flops / seconds / limits.product_flops_per_s, "of the matmul rate"
    else:
        ratio, unit = work.num_bytes / seconds / limits.copy_bytes_per_s, "of copy bandwidth"
    told = f"{seconds * 1e6:,.1f} us"
    if rival_seconds is not None:
        told += f"; {bench.rival_name} {rival_seconds * 1e6:,.1f} us"
    return Row("bench", f"{bench.op} {bench.name}", told, ratio, unit, bench.required)


@dataclass(frozen=True)
class Race:
    """One op against another one that does the same."""

    name: str
    own: Call
    rival: Call
    rival_name: str
    required: float | None = None
    """How many times as fast it has to be."""


def run_race(race: Race, timer: Timer) -> Row:
    return race_row(race, timer(race.own), timer(race.rival))


def race_row(race: Race, seconds: float, rival_seconds: float) -> Row:
    told = f"{seconds * 1e6:,.1f} us; {race.rival_name} {rival_seconds * 1e6:,.1f} us"
    ratio = rival_seconds / seconds
    return Row("bench", race.name, told, ratio, f"times as fast as {race.rival_name}", race.required)


def limits(tensors: BenchTensors, timer: Timer, *, copied_numbers: int, matmul_size: int) -> Limits:
    """Of a copy of so many bfloat16 numbers, and of a square matmul."""
    source, target = (tensors.numbers("bfloat16", copied_numbers) for _ in range(2))
    copy_seconds = timer(lambda: target.copy_(source))
    left, right = (tensors.numbers("bfloat16", matmul_size, matmul_size) for _ in range(2))
    product_seconds = timer(lambda: left @ right)
    return Limits(2 * 2 * copied_numbers / copy_seconds, 2 * matmul_size**3 / product_seconds)
