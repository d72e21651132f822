"""x · Wᵀ with weights of 8 or 4 bits, which are widened on the way to the tensor cores: W8A16, W4A16.

Shapes: T tokens, K values a token, N outputs. A weight is q · scale + offset; a group of G neighbours in a
row of W shares scale and offset:

    out[t, n] = Σ over groups (scale[n, g] · Σ x[t, k] · q[n, k]  +  offset[n, g] · Σ x[t, k]) + bias[n]

Whole numbers are exact in 16 bits, so a scale is multiplied in float32, once for each group's sum, and a
widened weight is never rounded nor written anywhere.

Bytes moved: N · K · bits / 8 of weights and N · K / G · (4 or less, with offsets twice) of scales, beside
(T · K + T · N) · w of activations. With few tokens, the case that counts, that is all: a half, a quarter of
what a weight of 16 bits takes. Made wide before the product, it would be written and read again: 4 bytes more
a weight.

Few tokens also give few programs: N / 64. The sum over K is then dealt to several programs, whose sums
[splits, T, N] in float32 a second kernel adds, in their order: no atomics, the same bits every time.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.matmul_check import check_product
from kernels.matmul_tile import MatmulTile, choose_num_splits, quant_tile, tuned_shape
from kernels.quant_layout import QuantizedWeight
from kernels.tile_dot import tile_dot
from kernels.tuned_choice import tuned_choice
from kernels.weight_bits import from_int4, from_int8

COMBINED = 1024
"""Outputs of a program that adds splits."""


@triton.jit
def _multiply(
    x_ptr, values_ptr, scales_ptr, offsets_ptr, bias_ptr, out_ptr,
    num_rows, num_outputs, x_stride, scale_stride, out_stride, split_stride,
    K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BYTES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """OUTPUTS rows of W · ROWS tokens, over one split of K; BYTES of a row of W a turn.

    A row of 4-bit numbers is two runs: its low bits are the first half of K, its high ones the second.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    WIDTH: tl.constexpr = K * BITS // 8
    TURNS: tl.constexpr = (WIDTH + BYTES - 1) // BYTES
    A_SPLIT: tl.constexpr = (TURNS + SPLITS - 1) // SPLITS
    is_row, is_output = row < num_rows, output < num_outputs
    weight_rows = values_ptr + output.to(tl.int64)[:, None] * WIDTH
    x_rows = x_ptr + row * x_stride
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    totals = tl.zeros([ROWS], tl.float32)

    for turn in range(split * A_SPLIT, tl.minimum((split + 1) * A_SPLIT, TURNS)):
        first = turn * BYTES
        column = first + tl.arange(0, BYTES)
        is_number = is_output[:, None]
        if WIDTH % BYTES != 0:
            is_number &= (column < WIDTH)[None, :]
        numbers = tl.load(weight_rows + column[None, :], is_number, other=0)
        if BITS == 8:
            product = tile_dot(
                from_int8(numbers, x_ptr.dtype.element_ty), _columns(x_rows, is_row, first, BYTES, WIDTH)
            )
        else:
            low, high = from_int4(numbers, x_ptr.dtype.element_ty, offsets_ptr is None)
            product = tile_dot(low, _columns(x_rows, is_row, first, BYTES, WIDTH))
            high_product = tile_dot(high, _columns(x_rows + WIDTH, is_row, first, BYTES, WIDTH))

        # scale · Σ x · q + offset · Σ x: at once for whole rows, else group by group
        if GROUP == K:
            sums += product
            if BITS == 4:
                sums += high_product
            if offsets_ptr is not None:
                totals += _row_sums(x_rows, is_row, first, BYTES, WIDTH)
                if BITS == 4:
                    totals += _row_sums(x_rows + WIDTH, is_row, first, BYTES, WIDTH)
        else:
            place = first // GROUP * scale_stride + output
            sums += product * _of_outputs(scales_ptr, place, is_output)
            if offsets_ptr is not None:
                totals = _row_sums(x_rows, is_row, first, BYTES, WIDTH)
                sums += totals[None, :] * _of_outputs(offsets_ptr, place, is_output)
            if BITS == 4:
                place = (WIDTH + first) // GROUP * scale_stride + output
                sums += high_product * _of_outputs(scales_ptr, place, is_output)
                if offsets_ptr is not None:
                    totals = _row_sums(x_rows + WIDTH, is_row, first, BYTES, WIDTH)
                    sums += totals[None, :] * _of_outputs(offsets_ptr, place, is_output)

    if GROUP == K:
        sums *= _of_outputs(scales_ptr, output, is_output)
        if offsets_ptr is not None:
            sums += totals[None, :] * _of_outputs(offsets_ptr, output, is_output)
    if bias_ptr is not None:
        sums += _of_outputs(bias_ptr, output, is_output)

    target = out_ptr + split * split_stride + row[:, None] * out_stride + output[None, :]
    tl.store(target, tl.trans(sums).to(out_ptr.dtype.element_ty), is_row[:, None] & is_output[None, :])


@triton.jit
def _columns(x_rows, is_row, first, BYTES: tl.constexpr, WIDTH: tl.constexpr):
    """x [BYTES, ROWS]: as many values from `first` on, of each token."""
    column = first + tl.arange(0, BYTES)[:, None]
    is_there = is_row[None, :]
    if WIDTH % BYTES != 0:
        is_there &= column < WIDTH
    return tl.load(x_rows[None, :] + column, is_there, other=0.0)


@triton.jit
def _row_sums(x_rows, is_row, first, BYTES: tl.constexpr, WIDTH: tl.constexpr):
    """Σ of the same values, [ROWS]. Loaded by themselves, from a cache: the products' values are laid out in
    shared memory for tensor cores, and to be read otherwise they could not be without bank conflicts."""
    column = first + tl.arange(0, BYTES)[None, :]
    is_there = is_row[:, None]
    if WIDTH % BYTES != 0:
        is_there &= column < WIDTH
    return tl.sum(tl.load(x_rows[:, None] + column, is_there, other=0.0).to(tl.float32), axis=1)


@triton.jit
def _of_outputs(numbers_ptr, place, is_output):
    """[OUTPUTS, 1] in float32"""
    return tl.load(numbers_ptr + place, is_output, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _add_splits(
    partial_ptr, bias_ptr, out_ptr, num_outputs, out_stride, split_stride,
    SPLITS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """OUTPUTS of one token: the sums of all splits, in their order."""
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    place = partial_ptr + row * num_outputs + output

    sums = tl.load(place, is_output, other=0.0)
    for split in tl.static_range(1, SPLITS):
        sums += tl.load(place + split * split_stride, is_output, other=0.0)

    if bias_ptr is not None:
        sums += tl.load(bias_ptr + output, is_output, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + output, sums.to(out_ptr.dtype.element_ty), is_output)


def matmul_quant(
    x: Tensor,  # [T, K] float16, bfloat16 or float32; the last dimension contiguous
    weight: QuantizedWeight,  # [N, K]
    bias: Tensor | None = None,  # [N], any float
    *,
    out: Tensor | None = None,  # [T, N]; the last dimension contiguous
    workspace: Tensor | None = None,  # [at least workspace_numel] float32
    num_splits: int | None = None,
    tile: MatmulTile | None = None,
) -> Tensor:
    """x · Wᵀ + bias, summed in float32. Returns `out`, [T, N] in x's type.

    No value of a tensor is read on the host and the grid depends on shapes alone, so a CUDA graph may hold
    the call; with `out` and `workspace` given nothing is allocated.

    Raises ValueError for tensors that do not fit.
    """
    num_rows, num_outputs = x.shape[0], weight.shape[0]
    out = x.new_empty(num_rows, num_outputs) if out is None else out
    check_product(x, weight, bias, out)
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"{num_splits} splits multiply nothing")
    if out.numel() == 0:
        return out
    if tile is None and (tuned := tuned_choice("matmul_quant", tuned_shape(x, weight), x.device)) is not None:
        tile, num_splits = tuned.tile(MatmulTile), num_splits or tuned.num_splits
    tile = tile or quant_tile(num_rows, x.dtype, weight.num_bits)
    constants = multiply_constants(weight, tile)
    grid = (triton.cdiv(num_rows, constants["ROWS"]), triton.cdiv(num_outputs, constants["OUTPUTS"]))
    if num_splits is None:
        turns = triton.cdiv(weight.values.shape[1], constants["BYTES"])
        num_splits = choose_num_splits(grid[0] * grid[1], turns, x.device)
    is_split = num_splits > 1
    partial = _partial(workspace, x, num_outputs, num_splits) if is_split else out
    _multiply[(*grid, num_splits)](
        x, weight.values, weight.scales, weight.offsets, None if is_split else bias, partial,
        num_rows, num_outputs, x.stride(0), weight.scales.stride(1), partial.stride(-2),
        num_rows * num_outputs,
        **constants, SPLITS=num_splits, num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if is_split:
        _add_up(partial, bias, out)
    return out


def workspace_numel(num_rows: int, num_outputs: int, num_splits: int) -> int:
    """Numbers in float32 that a call with more than one split needs: [splits, T, N]."""
    return num_splits * num_rows * num_outputs if num_splits > 1 else 0


def multiply_constants(weight: QuantizedWeight, tile: MatmulTile) -> dict[str, Any]:
    """What `_multiply` is compiled for. A turn's bytes lie in one group, with 4 bits in one a half."""
    _, num_columns = weight.shape
    num_bytes = tile.num_bytes
    if weight.group_size < num_columns:
        num_bytes = min(num_bytes, gcd(weight.group_size, weight.values.shape[1]))
    return {
        "K": num_columns,
        "GROUP": weight.group_size,
        "BITS": weight.num_bits,
        "ROWS": tile.num_rows,
        "OUTPUTS": tile.num_outputs,
        "BYTES": num_bytes,
    }


def _add_up(partial: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Adds the splits [splits, T, N] into `out` [T, N]."""
    num_splits, num_rows, num_outputs = partial.shape
    outputs = min(COMBINED, triton.next_power_of_2(num_outputs))
    _add_splits[(num_rows, triton.cdiv(num_outputs, outputs))](
        partial, bias, out, num_outputs, out.stride(0), partial.stride(0),
        SPLITS=num_splits, OUTPUTS=outputs, num_warps=4,
    )  # fmt: skip


def _partial(workspace: Tensor | None, x: Tensor, num_outputs: int, num_splits: int) -> Tensor:
    numel = workspace_numel(len(x), num_outputs, num_splits)
    if workspace is None:
        workspace = torch.empty(numel, dtype=torch.float32, device=x.device)
    if workspace.dtype != torch.float32 or workspace.numel() < numel:
        raise ValueError(f"the workspace must hold {numel} numbers of float32")
    return workspace[:numel].view(num_splits, len(x), num_outputs)
