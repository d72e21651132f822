"""How a product with quantised weights is cut into programs and turns.

Chosen from what the compiler makes of the kernels for sm_80, sm_90 and sm_100: no spills, and enough bytes on
their way for the memory's latency. Not chosen by speed: they have not been run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.dtype_name import dtype_name
from kernels.processors import num_processors
from kernels.quant_layout import QuantizedWeight

PROGRAMS_PER_PROCESSOR = 4
MAX_SPLITS = 32


@dataclass(frozen=True, slots=True)
class MatmulTile:
    num_rows: int
    """Tokens of a program."""
    num_outputs: int
    """Rows of the weight."""
    num_bytes: int
    """Of each of them in a turn, at most: a turn stays within a group."""
    num_warps: int
    num_stages: int


def quant_tile(num_rows: int, dtype: torch.dtype, num_bits: int) -> MatmulTile:
    """For activations of 16 bits or float32. Two warps, for with four the later GPUs' own instructions are
    chosen, whose operands in registers are read from shared memory by two bytes."""
    if dtype == torch.float32:  # no tensor cores, so a product lives in registers
        width = 64 if num_bits == 8 else 32
        return MatmulTile(num_rows=16, num_outputs=32, num_bytes=width, num_warps=4, num_stages=2)
    if num_rows <= 8:
        outputs = 64 if num_bits == 8 else 128  # with 64 of 4 bits sm_100 spills
        return MatmulTile(num_rows=8, num_outputs=outputs, num_bytes=128, num_warps=2, num_stages=4)
    if num_rows <= 16:
        return MatmulTile(num_rows=16, num_outputs=64, num_bytes=128, num_warps=2, num_stages=4)
    if num_rows <= 64:
        return MatmulTile(num_rows=64, num_outputs=128, num_bytes=64, num_warps=8, num_stages=3)
    outputs = 128 if num_bits == 8 else 64
    return MatmulTile(num_rows=128, num_outputs=outputs, num_bytes=64, num_warps=8, num_stages=3)


def w8a8_tile(num_rows: int) -> MatmulTile:
    if num_rows <= 16:
        return MatmulTile(num_rows=16, num_outputs=32, num_bytes=128, num_warps=4, num_stages=4)
    if num_rows <= 64:
        return MatmulTile(num_rows=64, num_outputs=32, num_bytes=128, num_warps=4, num_stages=4)
    return MatmulTile(num_rows=128, num_outputs=128, num_bytes=128, num_warps=8, num_stages=3)


def choose_num_splits(num_programs: int, num_turns: int, device: torch.device) -> int:
    """Enough to fill the device with `num_programs` times as many, each with two turns or more: 1, 2, 4, …

    A power of two, for each number is a compilation of its own.
    """
    missing = PROGRAMS_PER_PROCESSOR * num_processors(device) // max(num_programs, 1)
    most = min(missing, num_turns // 2, MAX_SPLITS)
    return 1 << (most.bit_length() - 1) if most > 1 else 1


def tuned_shape(
    x: Tensor,  # [T, K]
    weight: QuantizedWeight,  # [N, K]
) -> dict[str, int | str]:
    """What a product is looked up by."""
    num_outputs, num_columns = weight.shape
    group = "" if weight.group_size == num_columns else f" group {weight.group_size}"
    return {
        "dtype": dtype_name(x.dtype),
        "weights": f"W{weight.num_bits}{group}{' offsets' if weight.offsets is not None else ''}",
        "num_outputs": num_outputs,
        "num_columns": num_columns,
        "num_rows": len(x),
    }
