"""RMS norm, alone or with the residual sum before it.

Bytes moved, for T rows of `hidden` values of w bytes: 2 · T · hidden · w alone (read x, write the norm).
With the residual 4 · T · hidden · w (read x and residual, write sum and norm); as two kernels the sum would
be read again: 5. In torch's own operations the norm alone reads and writes its row about six times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024
"""Values that a program holds at least: short rows (the norm of a head) share one."""


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, residual_out, eps,
    num_rows, row_stride, head_stride,  # of x; the others are contiguous
    HEADS: tl.constexpr,  # rows of x to one row_stride
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # COLUMNS: power of two ≥ HIDDEN
):  # fmt: skip
    """`ROWS` whole rows. `residual` None: no sum."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    is_there = (rows < num_rows) & (columns < HIDDEN)
    places = rows // HEADS * row_stride + rows % HEADS * head_stride + columns
    targets = rows * HIDDEN + columns

    values = tl.load(x + places, is_there, 0.0).to(tl.float32)
    gain = tl.load(weight + columns, columns < HIDDEN, 0.0).to(tl.float32)
    if residual is not None:
        values += tl.load(residual + targets, is_there, 0.0).to(tl.float32)
        # The norm is of the sum as it is stored, as it would be if the two were apart.
        values = values.to(residual_out.dtype.element_ty).to(tl.float32)

    # x / sqrt(mean(x²) + eps) · weight
    mean_square = tl.sum(values * values, axis=1, keep_dims=True) / HIDDEN
    normed = values * tl.rsqrt(mean_square + eps) * gain

    tl.store(out + targets, normed.to(out.dtype.element_ty), is_there)
    if residual is not None:
        tl.store(residual_out + targets, values.to(residual_out.dtype.element_ty), is_there)


def rms_norm(
    x: Tensor,  # [T, hidden] or [T, heads, hidden]; the last dimension contiguous
    weight: Tensor,  # [hidden]
    eps: float,
    *,
    out: Tensor | None = None,  # contiguous, as x
) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight; computed in float32. Returns x's shape, contiguous."""
    out = _like(x) if out is None else out
    _launch(x, None, weight, eps, out, None)
    return out


def add_rms_norm(
    x: Tensor,  # [T, hidden]; the last dimension contiguous
    residual: Tensor,  # [T, hidden], contiguous
    weight: Tensor,  # [hidden]
    eps: float,
    *,
    out: Tensor | None = None,  # contiguous, as x; may be x
    residual_out: Tensor | None = None,  # likewise; may be `residual`
) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and the sum itself, which is the next residual."""
    out = _like(x) if out is None else out
    residual_out = _like(residual) if residual_out is None else residual_out
    _launch(x, residual, weight, eps, out, residual_out)
    return out, residual_out


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor, residual_out: Tensor | None
) -> None:
    hidden = x.shape[-1]
    columns = triton.next_power_of_2(hidden)
    rows = max(1, TILE // columns)
    num_rows = x.numel() // hidden
    _rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x, residual, weight, out, residual_out, eps,
        num_rows, x.stride(0), x.stride(-2),
        HEADS=x.shape[1] if x.dim() == 3 else 1, HIDDEN=hidden,
        ROWS=rows, COLUMNS=columns,
        num_warps=max(4, min(16, columns // 512)),
    )  # fmt: skip


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
