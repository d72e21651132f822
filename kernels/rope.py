"""Rotary position embedding, with the look-up of each token's angles.

Bytes moved, for T tokens of `heads` heads: 2 · T · heads · D · w (read, write), and T · D · w of the tables
(cosine and sine, D / 2 each). Fused: gathering the angles first would write and read them once more, and
two halves turned by separate operations would read and write every value three times.
Whatever stretches positions (linear, Llama 3's, YaRN) is in the tables.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS_A_PROGRAM = 16


@triton.jit
def _rope_kernel(
    x, cos, sin, positions, out,
    row_stride, head_stride, out_row_stride, out_head_stride,  # in elements; D is contiguous
    NUM_HEADS: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, PAIRS: tl.constexpr,  # PAIRS: power of two ≥ HALF
):  # fmt: skip
    """One token, `HEADS` of its heads: both halves [HEADS, PAIRS]."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pairs = tl.arange(0, PAIRS)[None, :]
    is_there = (heads < NUM_HEADS) & (pairs < HALF)
    source = x + token * row_stride + heads * head_stride + pairs
    target = out + token * out_row_stride + heads * out_head_stride + pairs
    angles = tl.load(positions + token) * HALF + pairs

    c = tl.load(cos + angles, pairs < HALF, 0.0).to(tl.float32)
    s = tl.load(sin + angles, pairs < HALF, 0.0).to(tl.float32)
    first = tl.load(source, is_there, 0.0).to(tl.float32)
    second = tl.load(source + HALF, is_there, 0.0).to(tl.float32)

    # (first, second) · (cos + i sin), as one complex number a pair
    turned_first = first * c - second * s
    turned_second = second * c + first * s

    tl.store(target, turned_first.to(out.dtype.element_ty), is_there)
    tl.store(target + HALF, turned_second.to(out.dtype.element_ty), is_there)


def rope(
    x: Tensor,  # [T, heads, D]; the last dimension contiguous
    cos: Tensor,  # [max_len, D / 2], contiguous
    sin: Tensor,  # likewise
    positions: Tensor,  # [T] int64, below max_len
    *,
    out: Tensor | None = None,  # [T, heads, D]; the last dimension contiguous; may be x
) -> Tensor:
    """Rotates each pair (i, i + D / 2) by the angle of its token's position (half-split layout).

    Raises ValueError for tables that are not of D / 2 pairs.
    """
    num_tokens, num_heads, head_dim = x.shape
    half = cos.shape[1]
    if 2 * half != head_dim or sin.shape != cos.shape:
        raise ValueError(f"tables of {half} and {sin.shape[1]} pairs for a head of {head_dim}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    heads = min(HEADS_A_PROGRAM, triton.next_power_of_2(num_heads))
    pairs = triton.next_power_of_2(half)
    _rope_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        x, cos, sin, positions, out,
        x.stride(0), x.stride(1), out.stride(0), out.stride(1),
        NUM_HEADS=num_heads, HALF=half, HEADS=heads, PAIRS=pairs,
        num_warps=max(1, min(4, heads * pairs // 256)),
    )  # fmt: skip
    return out
