"""Puts a step's keys and values into the paged cache, quantised on the way where the cache is int8 or fp8.

Bytes moved, for T tokens: K and V are read once and written once, 2 · T · KVH · D · (in + stored) bytes;
with scales 2 · T · KVH · 4 more. Fused, because the scale needs the row's largest value: as two steps the
row would be read twice and its scale once more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""What a row's largest value is stored as, for each quantised type."""


@triton.jit
def _kv_write_kernel(
    key, value, k_cache, v_cache, k_scales, v_scales, slot_mapping,
    key_stride, key_head_stride, value_stride, value_head_stride,  # in elements; D is contiguous
    KVH: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
    LARGEST: tl.constexpr,  # None: stored as it is
    HEADS: tl.constexpr, DIMS: tl.constexpr,  # powers of two ≥ KVH, D
):  # fmt: skip
    """One token: all heads of its key and value, [HEADS, DIMS] each."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, DIMS)[None, :]
    is_there = (heads[:, None] < KVH) & (dims < D)
    rows = (slot // B * KVH + heads) * B + slot % B  # of [N · KVH · B, D]
    targets = rows[:, None] * D + dims

    k = tl.load(key + token * key_stride + heads[:, None] * key_head_stride + dims, is_there, 0.0)
    v = tl.load(value + token * value_stride + heads[:, None] * value_head_stride + dims, is_there, 0.0)

    if LARGEST is not None:
        k, k_scale = _quantize(k.to(tl.float32), LARGEST)
        v, v_scale = _quantize(v.to(tl.float32), LARGEST)
        tl.store(k_scales + rows, k_scale, heads < KVH)
        tl.store(v_scales + rows, v_scale, heads < KVH)

    tl.store(k_cache + targets, _rounded(k, k_cache.dtype.element_ty), is_there)
    tl.store(v_cache + targets, _rounded(v, v_cache.dtype.element_ty), is_there)


@triton.jit
def _quantize(x, LARGEST: tl.constexpr):
    """x [HEADS, DIMS] → x / scale, not yet rounded, and scale [HEADS] = max |x| / LARGEST."""
    # A maximum passes over NaN. The sum keeps it, so that a row that was not finite still reads as such.
    largest = tl.max(tl.abs(x), axis=1) + tl.sum(x * 0.0, axis=1)
    scale = tl.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32))
    divisor = tl.where(scale == 0.0, 1.0, scale)
    return tl.div_rn(x, tl.broadcast_to(divisor[:, None], x.shape)), scale


@triton.jit
def _rounded(x, stored: tl.constexpr):
    """To the nearest value of the stored type, ties to even."""
    if stored == tl.int8:
        # From 1.5 · 2²³ on, a float32 has no fractions: the addition rounds. |x| ≤ 127.
        return ((x + 12582912.0) - 12582912.0).to(tl.int8)
    if stored == tl.float8e4nv:
        return _rounded_to_e4m3(x).to(stored)
    return x.to(stored)


@triton.jit
def _rounded_to_e4m3(x):
    """A float32 that e4m3 holds exactly. The conversion of a GPU would round by itself, but that of Triton's
    interpreter loses carries: rounded here, both store the same."""
    # Three bits after the first: half of the last one is added, less a little where the last one is 0.
    bits = x.to(tl.int32, bitcast=True)
    few = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    # Below 2⁻⁶ all values are 2⁻⁹ apart, as float32 are from 1.5 · 2¹⁴ on.
    return tl.where(tl.abs(x) < 0.015625, (x + 24576.0) - 24576.0, few.to(tl.float32, bitcast=True))


def kv_write(
    key: Tensor,  # [T, KVH, D]; the last dimension contiguous
    value: Tensor,  # [T, KVH, D]; likewise
    k_cache: Tensor,  # [N, KVH, B, D], written
    v_cache: Tensor,  # [N, KVH, B, D], written
    slot_mapping: Tensor,  # [T] int64: block · B + slot; padding tokens point into block 0
    k_scale: Tensor | None = None,  # [N, KVH, B] float32, written: for an int8 or fp8 cache
    v_scale: Tensor | None = None,  # likewise
) -> None:
    """Puts each token's key and value into its slot; stored value · scale is what was put in, rounded.

    int8 and fp8 (e4m3) have one scale for each slot and head: max |x| / 127 or / 448.
    Raises ValueError if such a cache comes without scales, or another one with them.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    largest = LARGEST.get(k_cache.dtype)
    if {k_scale is None, v_scale is None} != {largest is None}:
        raise ValueError(f"a cache of {k_cache.dtype} goes {'with' if largest else 'without'} scales")
    heads, dims = triton.next_power_of_2(num_kv_heads), triton.next_power_of_2(head_dim)
    _kv_write_kernel[(num_tokens,)](
        key, value, k_cache, v_cache, k_scale, v_scale, slot_mapping,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        KVH=num_kv_heads, B=k_cache.shape[2], D=head_dim,
        LARGEST=largest, HEADS=heads, DIMS=dims,
        num_warps=max(1, min(8, heads * dims // 256)),
    )  # fmt: skip
