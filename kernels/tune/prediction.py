"""How long a compiled candidate might take: a number to rank by where there is no GPU to measure on.

One turn of a kernel's loop takes a processor the longest of four times:

    products   the tile's, at the rate of tensor cores; with Ampere's instructions three fifths of that on
               later GPUs, whose full rate needs their own
    issue      instructions of all warps, four a cycle
    memory     the turn's bytes at the processor's share of the bandwidth, at most 64 bytes a cycle
    latency    products and issue of one program after each other and what of a load's 800 cycles its
               pipeline does not cover, divided by the programs that a processor holds at a time

times the turns of the fullest processor, and a launch each kernel. A candidate that spills or does not fit
is never chosen. What this does not know: caches, conflicts between programs, how well the compiler
scheduled, the clock under load. So it says which candidate to measure first, not how fast one is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kernels.audit.facts import Facts
from kernels.gpus import Gpu
from kernels.tune.problem import Turns

LOAD_CYCLES = 800
ISSUE_A_CYCLE = 4
L2_BYTES_A_CYCLE = 64
OLD_PRODUCTS = 0.6
LAUNCH_S = 2e-6


def seconds(
    kernels: Sequence[Facts], turns: Mapping[str, Turns], gpu: Gpu, *, other_bytes: int, dtype: str
) -> float:
    """`other_bytes`: moved outside the loops. Infinity for what spills or does not fit."""
    if any(facts.spill_bytes or facts.num_spills or facts.occupancy.programs == 0 for facts in kernels):
        return math.inf
    loops = (_kernel(facts, turns[facts.kernel], gpu, dtype) for facts in kernels if facts.kernel in turns)
    return sum(loops) + LAUNCH_S * len(kernels) + other_bytes / gpu.bandwidth


def _kernel(facts: Facts, turns: Turns, gpu: Gpu, dtype: str) -> float:
    programs = math.prod(facts.grid)
    fullest = -(-programs // gpu.processors)
    at_a_time = min(facts.occupancy.programs, fullest)
    cycles = _turn_cycles(facts, turns, gpu, dtype, min(programs, gpu.processors), at_a_time)
    return turns.number / programs * fullest * cycles / gpu.clock


def _turn_cycles(facts: Facts, turns: Turns, gpu: Gpu, dtype: str, processors: int, at_a_time: int) -> float:
    """Of one processor, of which `processors` work, each on `at_a_time` programs."""
    products = turns.flops / (gpu.rate_of(dtype) / gpu.processors / gpu.clock * _speed(facts, gpu))
    a_loop = max(1, round(facts.loop_flops * facts.num_warps / turns.flops))  # turns, where it is unrolled
    issue = facts.loop_instructions * facts.num_warps / ISSUE_A_CYCLE / a_loop
    memory = turns.num_bytes / min(L2_BYTES_A_CYCLE, gpu.bandwidth / processors / gpu.clock)
    latency = products + issue + LOAD_CYCLES / max(1, facts.num_stages - 1)
    return max(products, issue, memory, latency / at_a_time)


def _speed(facts: Facts, gpu: Gpu) -> float:
    has_old = any(name.startswith("HMMA") for name in facts.tensor)
    return OLD_PRODUCTS if has_old and gpu.arch in ("sm_90", "sm_100") else 1.0
