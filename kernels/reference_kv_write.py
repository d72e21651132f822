"""The plain quantised write: what an int8 or fp8 cache and its scales must hold, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def quantize(
    x: Tensor,  # [..., D]
    stored: torch.dtype,  # int8 or float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Codes [..., D] and scales [...]: scale = max |x| / largest code, code = x / scale to the nearest,
    ties to even. In float32, for the scale is stored so; a row of zeros has scale 0."""
    wide = x.float()
    scale = wide.abs().amax(dim=-1) / LARGEST[stored]
    codes = wide / torch.where(scale == 0.0, 1.0, scale).unsqueeze(-1)
    return (codes.round() if stored == torch.int8 else codes).to(stored), scale


def kv_write_quantized(
    key: Tensor,  # [T, KVH, D]
    value: Tensor,  # [T, KVH, D]
    k_cache: Tensor,  # [N, KVH, B, D], written
    v_cache: Tensor,  # [N, KVH, B, D], written
    k_scale: Tensor,  # [N, KVH, B] float32, written
    v_scale: Tensor,  # likewise
    slot_mapping: Tensor,  # [T] int64: block · B + slot
) -> None:
    """Puts each token's codes and scales into its slot."""
    block_size = k_cache.shape[2]
    for x, cache, scales in ((key, k_cache, k_scale), (value, v_cache, v_scale)):
        codes, scale = quantize(x, cache.dtype)
        for token, slot in enumerate(slot_mapping.tolist()):
            block, offset = divmod(slot, block_size)
            cache[block, :, offset] = codes[token]
            scales[block, :, offset] = scale[token]
