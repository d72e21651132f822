"""Plain references: what every fast kernel must equal. Readable first; float64 works throughout.

Inputs are never modified, except the caches that `kv_write` is for. Shapes: T tokens of S sequences,
flattened; H query heads in H / KVH groups over KVH key heads; D values a head; N blocks of B slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.kv_shape import KvShape


def linear(
    x: Tensor,  # [T, in]
    weight: Tensor,  # [out, in]
    bias: Tensor | None = None,  # [out]
) -> Tensor:
    """x · weightᵀ + bias; summed in float32 or wider, returned in x's type. Returns [T, out]."""
    wide = _at_least_float32(x.dtype)
    product = x.to(wide) @ weight.to(wide).T
    return (product if bias is None else product + bias.to(wide)).to(x.dtype)


def rms_norm(
    x: Tensor,  # [..., hidden]
    weight: Tensor,  # [hidden]
    eps: float,
) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight; computed in float32 or wider, returned in x's type."""
    wide = x.to(_at_least_float32(x.dtype))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype)


def rope(
    x: Tensor,  # [T, heads, D]
    cos: Tensor,  # [T, D / 2]
    sin: Tensor,  # [T, D / 2]
) -> Tensor:
    """Rotates each pair (i, i + D / 2) by its position's angle (half-split layout)."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def silu_mul(
    gate_up: Tensor,  # [T, 2 * inner]: gate, then up
) -> Tensor:
    """silu(gate) · up. Returns [T, inner]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def kv_write(
    key: Tensor,  # [T, KVH, D]
    value: Tensor,  # [T, KVH, D]
    k_cache: Tensor,  # [N, KVH, B, D], written
    v_cache: Tensor,  # [N, KVH, B, D], written
    slot_mapping: Tensor,  # [T] int64: block · B + slot
) -> None:
    """Puts each token's key and value into its slot."""
    block_size = k_cache.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        k_cache[block, :, offset] = key[token]
        v_cache[block, :, offset] = value[token]


def paged_attention(
    query: Tensor,  # [T, H, D]
    k_cache: Tensor,  # [N, KVH, B, D]
    v_cache: Tensor,  # [N, KVH, B, D]
    block_table: Tensor,  # [S, max_blocks] int32
    cu_query_lens: Tensor,  # [S + 1] int32
    seq_lens: Tensor,  # [S] int32: tokens of the sequence up to its last query
    scale: float,
) -> Tensor:
    """Causal attention of each sequence's last queries over its keys. Returns [T, H, D].

    Query j of a sequence with n queries stands at position seq_len - n + j and sees all keys up to
    there. The keys and values of the queries themselves are already in the cache.
    """
    output = torch.empty_like(query)
    borders = cu_query_lens.tolist()
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(borders[sequence], borders[sequence + 1])
        key = _context(k_cache, block_table[sequence], seq_len)
        value = _context(v_cache, block_table[sequence], seq_len)
        output[rows] = _causal_attention(query[rows], key, value, scale)
    return output


class PagedStep:
    """`kv_write` and `paged_attention` of one step's batch."""

    def __init__(
        self,
        block_table: Tensor,  # [S, max_blocks] int32
        slot_mapping: Tensor,  # [T] int64
        cu_query_lens: Sequence[int],  # S + 1
        seq_lens: Sequence[int],  # S
        kv: KvShape,
    ) -> None:
        self._block_table = block_table
        self._slot_mapping = slot_mapping
        self._cu_query_lens = torch.tensor(cu_query_lens, dtype=torch.int32)
        self._seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
        self._scale = kv.scale

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Puts key and value [T, KVH, D] into the step's slots."""
        kv_write(key, value, k_cache, v_cache, self._slot_mapping)

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Causal attention of the step's queries [T, H, D]. Returns [T, H, D]."""
        return paged_attention(
            query, k_cache, v_cache, self._block_table, self._cu_query_lens, self._seq_lens, self._scale
        )


def _context(cache: Tensor, blocks: Tensor, seq_len: int) -> Tensor:
    """The first `seq_len` entries of a sequence, in order: [seq_len, KVH, D]."""
    block_size = cache.shape[2]
    used = blocks[: -(-seq_len // block_size)].long()
    return cache[used].transpose(1, 2).flatten(0, 1)[:seq_len]


def _causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    num_queries, num_heads, _ = query.shape
    seq_len, num_kv_heads, _ = key.shape
    wide = _at_least_float32(query.dtype)
    key, value = (x.to(wide).repeat_interleave(num_heads // num_kv_heads, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.to(wide), key) * scale
    query_position = torch.arange(seq_len - num_queries, seq_len, device=query.device)
    key_position = torch.arange(seq_len, device=query.device)
    scores = scores.masked_fill(key_position > query_position[:, None], float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value).to(query.dtype)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
