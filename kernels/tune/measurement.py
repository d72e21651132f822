"""Costs on the GPU of this machine: the median time of a call, each beginning with a cold L2 cache."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch

from kernels.audit.bench_tensors import BenchTensors
from kernels.audit.calls import CALLS, Call
from kernels.tune.problem import Problem
from kernels.tune.search import Costs
from kernels.tune.space import Candidate

WARM_UPS = 3
RUNS = 20
FLUSHED_BYTES = 256 << 20
"""Written before each run: twice the largest L2 cache."""


def measurement(problem: Problem, arch: str) -> Costs:
    tensors = BenchTensors("cuda")
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def cost(candidate: Candidate) -> float:
        try:
            call = CALLS[problem.op](tensors, arch, **problem.arguments_with(candidate))
            return median_seconds(call, flushed)
        except Exception:  # too large for the GPU, or for the compiler: it cannot be
            return math.inf

    return lambda candidates: [cost(candidate) for candidate in candidates]


def median_seconds(call: Call, flushed: torch.Tensor) -> float:
    for _ in range(WARM_UPS):
        call()
    return statistics.median(_run(call, flushed) for _ in range(RUNS))


def _run(call: Call, flushed: torch.Tensor) -> float:
    event: Any = torch.cuda.Event  # torch tells no types of it
    start, end = event(enable_timing=True), event(enable_timing=True)
    flushed.zero_()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def arch_in_use() -> str | None:
    """None: there is no GPU."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def gpu_in_use() -> str:
    return torch.cuda.get_device_name()


def versions() -> dict[str, str]:
    import triton

    return {"torch": torch.__version__.split("+")[0], "triton": triton.__version__}
