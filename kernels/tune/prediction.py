"""How long a compiled candidate might take: a number to rank by where there is no GPU to measure on.

One turn of a kernel's loop takes a processor the longest of four times:

    products   the tile's, at the rate of tensor cores; with Ampere's instructions three fifths of that on
               later GPUs, whose full rate needs their own
    issue      instructions of all warps, four a cycle
    reading    the turn's bytes, 64 a cycle: what a processor gets from the L2 cache
    latency    products and issue of one program after each other, and what of its loads' 800 cycles each the
               pipeline does not cover; divided by the programs that a processor holds at a time

times the turns of the fullest processor, but no less than all bytes once at the memory's bandwidth; and a
launch each kernel. A candidate that spills or does not fit is never chosen. What this does not know: what
the caches hold, conflicts between programs, how well the compiler scheduled, the clock under load. So it says
which candidate to measure first, not how fast one is.
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
    kernels: Sequence[Facts], turns: Mapping[str, Turns], gpu: Gpu, *, num_bytes: int, dtype: str
) -> float:
    """`num_bytes`: what all kernels together move at least. Infinity for what spills or does not fit."""
    if any(facts.spill_bytes or facts.num_spills or facts.occupancy.programs == 0 for facts in kernels):
        return math.inf
    loops = sum(_kernel(facts, turns[facts.kernel], gpu, dtype) for facts in kernels if facts.kernel in turns)
    return max(loops, num_bytes / gpu.bandwidth) + LAUNCH_S * len(kernels)


def _kernel(facts: Facts, turns: Turns, gpu: Gpu, dtype: str) -> float:
    programs = math.prod(facts.grid)
    fullest = -(-programs // gpu.processors)
    at_a_time = min(facts.occupancy.programs, fullest)
    cycles = _turn_cycles(facts, turns, gpu, dtype, at_a_time)
    return turns.number / programs * fullest * cycles / gpu.clock


def _turn_cycles(facts: Facts, turns: Turns, gpu: Gpu, dtype: str, at_a_time: int) -> float:
    """Of a processor that has `at_a_time` programs."""
    products = turns.flops / (gpu.rate_of(dtype) / gpu.processors / gpu.clock * _speed(facts, gpu))
    a_loop = max(1, round(facts.loop_flops * facts.num_warps / turns.flops))  # turns, where it is unrolled
    issue = facts.loop_instructions * facts.num_warps / ISSUE_A_CYCLE / a_loop
    waiting = turns.num_loads * LOAD_CYCLES / max(1, facts.num_stages - 1)
    return max(products, issue, turns.num_bytes / L2_BYTES_A_CYCLE, (products + issue + waiting) / at_a_time)


def _speed(facts: Facts, gpu: Gpu) -> float:
    has_old = any(name.startswith(("HMMA", "IMMA")) for name in facts.tensor)
    return OLD_PRODUCTS if has_old and gpu.arch in ("sm_90", "sm_100") else 1.0
