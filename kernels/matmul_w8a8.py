"""x · Wᵀ with activations and weights of 8 bits: W8A8, for many tokens, where arithmetic is the bound.

Shapes: T tokens, K values a token, N outputs. A row of x becomes whole numbers and one scale, max |x| / 127,
as each row of W has one:

    out[t, n] = x_scale[t] · w_scale[n] · Σ x_code[t, k] · q[n, k] + bias[n]

The sum is one of whole numbers in 32 bits: exact, whatever its order. Tensor cores multiply them twice as
fast as numbers of 16 bits; for sm_100 Triton 3.7 has Ampere's instructions for it, not that GPU's own.

Bytes moved: T · K · (w + 1) to make the codes of x in one pass (its row stays in registers between the search
for the largest value and the division), then T · K + N · K + T · N · w. With few tokens weights alone count
and `matmul_quant` reads as many, without a rounded x.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.matmul_check import check_product
from kernels.matmul_tile import MatmulTile, tuned_shape, w8a8_tile
from kernels.quant_layout import QuantizedWeight
from kernels.tuned_choice import tuned_choice

MAX_COLUMNS = 1 << 17
"""127 · 128 times this is less than 2³¹."""


@triton.jit
def _quantize_rows(
    x_ptr, codes_ptr, scales_ptr, x_stride,
    K: tl.constexpr, COLUMNS: tl.constexpr,  # COLUMNS: power of two ≥ K
):  # fmt: skip
    """One token."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    is_there = column < K

    x = tl.load(x_ptr + row * x_stride + column, is_there, other=0.0).to(tl.float32)

    # scale = max |x| / 127, code = x / scale to the nearest, ties to even
    # A maximum passes over NaN. The sum keeps it, so that a row that was not finite still reads as such.
    largest = tl.max(tl.abs(x), axis=0) + tl.sum(x * 0.0, axis=0)
    scale = tl.div_rn(largest, 127.0)
    divisor = tl.where(scale == 0.0, 1.0, scale)
    codes = tl.div_rn(x, tl.zeros_like(x) + divisor)
    # From 1.5 · 2²³ on, a float32 has no fractions: the addition rounds. |code| ≤ 127.
    codes = (codes + 12582912.0) - 12582912.0

    tl.store(codes_ptr + row * K + column, codes.to(tl.int8), is_there)
    tl.store(scales_ptr + row, scale)


@triton.jit
def _multiply_codes(
    codes_ptr, code_scales_ptr, values_ptr, scales_ptr, bias_ptr, out_ptr,
    num_rows, num_outputs, out_stride,
    K: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """ROWS tokens · OUTPUTS rows of W."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = row < num_rows, output < num_outputs
    code_rows = codes_ptr + row[:, None] * K
    weight_rows = values_ptr + output.to(tl.int64)[:, None] * K
    sums = tl.zeros([ROWS, OUTPUTS], tl.int32)

    for first in range(0, K, BYTES):
        column = first + tl.arange(0, BYTES)[None, :]
        is_code, is_number = is_row[:, None], is_output[:, None]
        if K % BYTES != 0:
            is_code &= column < K
            is_number &= column < K
        codes = tl.load(code_rows + column, is_code, other=0)
        numbers = tl.load(weight_rows + column, is_number, other=0)
        sums = tl.dot(codes, tl.trans(numbers), sums, out_dtype=tl.int32)

    # x_scale · w_scale · Σ codes · numbers
    scale = tl.load(scales_ptr + output, is_output, other=0.0).to(tl.float32)
    code_scale = tl.load(code_scales_ptr + row, is_row, other=0.0)
    product = sums.to(tl.float32) * scale[None, :] * code_scale[:, None]
    if bias_ptr is not None:
        product += tl.load(bias_ptr + output, is_output, other=0.0).to(tl.float32)[None, :]

    target = out_ptr + row[:, None] * out_stride + output[None, :]
    tl.store(target, product.to(out_ptr.dtype.element_ty), is_row[:, None] & is_output[None, :])


def matmul_w8a8(
    x: Tensor,  # [T, K] float16, bfloat16 or float32; the last dimension contiguous
    weight: QuantizedWeight,  # [N, K], 8 bits, symmetric, a scale a row
    bias: Tensor | None = None,  # [N], any float
    *,
    out: Tensor | None = None,  # [T, N]; the last dimension contiguous
    codes: Tensor | None = None,  # [T, K] int8, written
    code_scales: Tensor | None = None,  # [T] float32, written
    tile: MatmulTile | None = None,
) -> Tensor:
    """x · Wᵀ + bias with x rounded to 8 bits. Returns `out`, [T, N] in x's type.

    A token that is not finite gives NaN. No value of a tensor is read on the host and the grid depends on
    shapes alone, so a CUDA graph may hold the call; with `out`, `codes` and `code_scales` given nothing is
    allocated.

    Raises ValueError for tensors that do not fit.
    """
    num_rows, (num_outputs, num_columns) = x.shape[0], weight.shape
    out = x.new_empty(num_rows, num_outputs) if out is None else out
    codes = x.new_empty(x.shape, dtype=torch.int8) if codes is None else codes
    code_scales = x.new_empty(num_rows, dtype=torch.float32) if code_scales is None else code_scales
    check_product(x, weight, bias, out)
    _check(x, weight, codes, code_scales)
    if out.numel() == 0:
        return out
    columns = triton.next_power_of_2(num_columns)
    _quantize_rows[(num_rows,)](
        x, codes, code_scales, x.stride(0),
        K=num_columns, COLUMNS=columns, num_warps=max(4, min(16, columns // 512)),
    )  # fmt: skip
    if tile is None and (tuned := tuned_choice("matmul_w8a8", tuned_shape(x, weight), x.device)) is not None:
        tile = tuned.tile(MatmulTile)
    tile = tile or w8a8_tile(num_rows)
    _multiply_codes[(triton.cdiv(num_rows, tile.num_rows), triton.cdiv(num_outputs, tile.num_outputs))](
        codes, code_scales, weight.values, weight.scales, bias, out,
        num_rows, num_outputs, out.stride(0),
        K=num_columns, ROWS=tile.num_rows, OUTPUTS=tile.num_outputs, BYTES=tile.num_bytes,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out


def _check(x: Tensor, weight: QuantizedWeight, codes: Tensor, code_scales: Tensor) -> None:
    """What eight bits on both sides ask for besides."""
    num_columns = x.shape[1]
    if weight.num_bits != 8 or weight.group_size != num_columns or weight.offsets is not None:
        raise ValueError("both in 8 bits: the weight must be symmetric, of 8 bits, with one scale a row")
    if num_columns > MAX_COLUMNS:
        raise ValueError(f"{num_columns} columns: beyond {MAX_COLUMNS} a sum may not fit 32 bits")
    if codes.shape != x.shape or not codes.is_contiguous() or code_scales.shape != x.shape[:1]:
        raise ValueError("codes must be [T, K], contiguous, their scales [T]")
