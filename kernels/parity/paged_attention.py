"""What cases of attention over a paged cache share: the cache, with NaN wherever nothing is to be read, and
torch's attention over it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import reference_attention
from kernels.parity.case import BYTES, Inputs

PEAKED = 3.0
"""Queries are this much larger than keys, so that a row's weights differ by orders of magnitude."""
Seen = tuple[int, int]
"""Positions [first, end) of a sequence whose keys a query sees; `end` is the sequence's length."""


def paged_cache(
    seen: Sequence[Seen],  # S
    generator: torch.Generator,
    *,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    value_size: float = 1.0,
) -> dict[str, Tensor]:
    """`block_table` [S, max_blocks], `k_cache` and `v_cache` [N, KVH, B, D]; of bytes `k_scale` and `v_scale`
    [N, KVH, B], too. What no query sees is NaN, in a cache of bytes its scale."""
    table = _block_table(seen, block_size, generator)
    unused = ~_used(seen, table, block_size)[:, None].expand(-1, num_kv_heads, -1)
    made = {"block_table": table}
    for name, size in (("k", 1.0), ("v", value_size)):
        values = torch.randn(*unused.shape, head_dim, generator=generator)
        if dtype in BYTES:
            cache, scale = _as_bytes(values, dtype, generator)
            made[f"{name}_cache"] = cache
            made[f"{name}_scale"] = (size * scale).masked_fill(unused, float("nan"))
        else:
            made[f"{name}_cache"] = (size * values).to(dtype).masked_fill(unused[..., None], float("nan"))
    return made


def _block_table(seen: Sequence[Seen], block_size: int, generator: torch.Generator) -> Tensor:
    """int32 [S, max_blocks]; 0 behind the sequence's end, and where nobody sees a key of the block."""
    counts = [-(-end // block_size) for _, end in seen]
    free = (1 + torch.randperm(sum(counts), generator=generator)).tolist()
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for sequence, (first, _) in enumerate(seen):
        for block in range(first // block_size, counts[sequence]):
            table[sequence, block] = free.pop()
    return table


def _used(seen: Sequence[Seen], table: Tensor, block_size: int) -> Tensor:
    """Which slots hold a token that a query sees: bool [N, B]."""
    used = torch.zeros(int(table.max()) + 1, block_size, dtype=torch.bool)
    for sequence, (first, end) in enumerate(seen):
        for position in range(first, end):
            used[table[sequence, position // block_size], position % block_size] = True
    return used


def _as_bytes(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers near 32 · values, and scales of slots near 1 / 32, no two alike."""
    scale = (0.5 + torch.rand(values.shape[:-1], generator=generator)) / 32
    numbers = (32 * values).clamp(-127, 127)
    return (numbers.round() if dtype == torch.int8 else numbers).to(dtype), scale


def sdpa(inputs: Inputs, cu_query_lens: Tensor) -> Tensor:
    """torch's, [T, H, D] in float64: sequence by sequence, with its keys gathered. No caps, no scales."""
    output = torch.zeros_like(inputs["query"], dtype=torch.float64)
    borders = cu_query_lens.tolist()
    for sequence, seq_len in enumerate(inputs["seq_lens"].tolist()):
        if seq_len == 0:
            continue
        rows = slice(borders[sequence], borders[sequence + 1])
        mask = reference_attention.visible(rows.stop - rows.start, seq_len, inputs["window"])
        mask = mask.to(output.device)
        unseen = ~mask.any(dim=0)[:, None]
        blocks = inputs["block_table"][sequence]
        key, value = (
            inputs[name][blocks].transpose(0, 1).flatten(1, 2)[:, :seq_len].double().masked_fill(unseen, 0.0)
            for name in ("k_cache", "v_cache")
        )
        query = inputs["query"][rows].double().transpose(0, 1)
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=inputs["scale"], enable_gqa=True
        )
        output[rows] = attended.transpose(0, 1)
    return output
