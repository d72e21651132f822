"""Attention over paged keys and values as written down: every key of every query, in float64.

The oracle of `attention_decode.py` and `attention_prefill.py`. Shapes: T tokens of S sequences, flattened;
H query heads in H / KVH groups over KVH key heads; D values a head; N blocks of B slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.block_lists import BlockLists


def paged_attention(
    query: Tensor,  # [T, H, D]
    k_cache: Tensor,  # [N, KVH, B, D]
    v_cache: Tensor,  # [N, KVH, B, D]
    block_table: Tensor,  # [S, max_blocks] int32
    cu_query_lens: Tensor,  # [S + 1] int32
    seq_lens: Tensor,  # [S] int32: tokens of the sequence up to its last query
    scale: float,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scale: Tensor | None = None,  # [N, KVH, B]
    v_scale: Tensor | None = None,  # [N, KVH, B]
    block_mask: BlockLists | None = None,
) -> Tensor:
    """Attention of each sequence's last queries over its keys. Returns [T, H, D] in float64.

    Query j of a sequence with n queries stands at position p = seq_len - n + j and sees the keys up to p,
    with a window only the last `window` of them, with a block mask those of its lists. A query that sees
    no key, and a token beyond the last sequence, give zeros.
    """
    output = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    borders = cu_query_lens.tolist()
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(borders[sequence], borders[sequence + 1])
        blocks = block_table[sequence]
        key = _context(k_cache, k_scale, blocks, seq_len)
        value = _context(v_cache, v_scale, blocks, seq_len)
        seen = visible(rows.stop - rows.start, seq_len, window).to(query.device)
        if block_mask is not None:
            seen = block_mask.seen(sequence, seen)
        output[rows] = _attention(query[rows].double(), key, value, scale, soft_cap, seen)
    return output


def visible(num_queries: int, seq_len: int, window: int | None = None) -> Tensor:
    """Which keys the last `num_queries` positions see: bool [num_queries, seq_len]."""
    query = torch.arange(seq_len - num_queries, seq_len)[:, None]
    key = torch.arange(seq_len)
    return (key <= query) if window is None else (key <= query) & (key > query - window)


def _context(cache: Tensor, slot_scale: Tensor | None, blocks: Tensor, seq_len: int) -> Tensor:
    """A sequence's entries in order, with their scales: [seq_len, KVH, D] in float64."""
    used = blocks[: -(-seq_len // cache.shape[2])].long()
    entries = cache[used].double()
    if slot_scale is not None:
        entries = entries * slot_scale[used].double()[..., None]
    return entries.transpose(1, 2).flatten(0, 1)[:seq_len]


def _attention(
    query: Tensor,  # [n, H, D]
    key: Tensor,  # [seq_len, KVH, D]
    value: Tensor,  # [seq_len, KVH, D]
    scale: float,
    soft_cap: float | None,
    seen: Tensor,  # [n, seq_len]
) -> Tensor:
    """softmax(scores) · value, where scores = query · key · scale, capped to (-soft_cap, soft_cap)."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    # The softmax of a row that sees nothing is NaN. A value that nobody sees may be, and 0 · NaN is NaN.
    weights = weights.masked_fill(~seen.any(dim=1)[:, None], 0.0)
    value = value.masked_fill(~seen.any(dim=0)[:, None, None], 0.0)
    return torch.einsum("hqk,khd->qhd", weights, value)
