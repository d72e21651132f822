"""The reference mode's kernels: a row's result has the same bits whatever else is in the step.

A matmul library picks its order of summation by the shapes it is given, so every matmul here has one
shape: `TILE` rows, the last zero-padded. Attention takes its keys in splits of `SPLIT`, from the first
on; a split beyond a query's position adds an exact zero. `exp` is the only transcendental function
used: torch computes `sigmoid` differently in the last few numbers of a tensor.

That holds on one thread, for a library also splits a matmul by the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.kv_shape import KvShape

TILE = 16
"""Rows of every matmul. A multiple of it would not do: 64 rows may be summed in another order."""
SPLIT = 128
"""Keys of one step of attention."""
_ALIGNMENT = 16
"""Numbers that a summed dimension is padded to: rows that begin off a cache line sum differently."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As the reference's, in x's type. x [T, in], weight [out, in] → [T, out]."""
    rows = F.pad(_aligned(x), (0, 0, 0, -len(x) % TILE))
    weight = _aligned(weight)
    product = torch.cat([F.linear(tile, weight) for tile in torch.split(rows, TILE)])[: len(x)]
    return product if bias is None else product + bias


def silu_mul(gate_up: Tensor) -> Tensor:
    """As the reference's."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


class PagedStep:
    """Attention over the paged cache for one step's batch. Shapes as in the reference.

    A sequence's queries, each with its group of heads, are rows one below the other, cut into tiles;
    whether they are a decode's or a prefill chunk's makes no difference.
    """

    def __init__(
        self,
        block_table: Tensor,  # [S, max_blocks] int32
        slot_mapping: Tensor,  # [T] int64
        cu_query_lens: Sequence[int],  # S + 1
        seq_lens: Sequence[int],  # S
        kv: KvShape,
    ) -> None:
        self._num_kv_heads = kv.num_kv_heads
        self._scale = kv.scale
        self._block, self._offset = slot_mapping // kv.block_size, slot_mapping % kv.block_size
        tiles = [
            _tiles_of(begin, end, seq_len, kv.num_heads // kv.num_kv_heads)
            for (begin, end), seq_len in zip(pairwise(cu_query_lens), seq_lens, strict=True)
        ]
        device = block_table.device
        self._tokens, self._heads, positions = (
            torch.cat(parts).to(device) for parts in zip(*tiles, strict=True)
        )
        num_tiles = torch.tensor([len(tokens) for tokens, _, _ in tiles], device=device)
        tables = block_table.long().repeat_interleave(num_tiles, dim=0)
        self._splits = [
            _Split(first, positions, tables, kv.block_size, kv.num_kv_heads)
            for first in range(0, max(seq_lens), SPLIT)
        ]

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Puts key and value [T, KVH, D] into the step's slots."""
        k_cache[self._block, :, self._offset] = key.to(k_cache.dtype)
        v_cache[self._block, :, self._offset] = value.to(v_cache.dtype)

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Causal attention of the step's queries [T, H, D]. Returns [T, H, D]."""
        num_tokens, num_heads, head_dim = query.shape
        grouped = query.view(num_tokens, self._num_kv_heads, -1, head_dim)
        tiles = grouped[self._tokens, :, self._heads].transpose(1, 2)  # [tiles, KVH, TILE, D]
        rows = _aligned(tiles.flatten(0, 1)) * self._scale
        best = rows.new_full((*rows.shape[:2], 1), float("-inf"))
        total, mixed = torch.zeros_like(best), torch.zeros_like(rows)
        for split in self._splits:
            key, value = (_aligned(x.to(query.dtype)) for x in split.gather(k_cache, v_cache))
            scores = torch.bmm(rows, key.transpose(1, 2)).masked_fill_(split.is_hidden, float("-inf"))
            higher = torch.maximum(best, scores.amax(dim=-1, keepdim=True))
            weights, fading = torch.exp(scores - higher), torch.exp(best - higher)
            total = total * fading + weights.sum(dim=-1, keepdim=True)
            mixed = mixed * fading + torch.bmm(weights, value)
            best = higher
        output = torch.empty_like(grouped)
        attended = (mixed / total)[..., :head_dim].view(len(self._tokens), -1, TILE, head_dim)
        output[self._tokens, :, self._heads] = attended.transpose(1, 2)
        return output.view(num_tokens, num_heads, head_dim)


def _tiles_of(begin: int, end: int, seq_len: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token, head in its group and position of each row of one sequence's tiles: [tiles, TILE] each.

    The last tile is filled with copies of the first row: they compute what that one does.
    """
    rows = torch.arange((end - begin) * group)
    rows = F.pad(rows, (0, -len(rows) % TILE)).view(-1, TILE)
    return begin + rows // group, rows % group, seq_len - (end - begin) + rows // group


class _Split:
    """Keys `first` to `first + SPLIT` of each tile's sequence, and which of them its rows don't see."""

    def __init__(
        self,
        first: int,
        positions: Tensor,  # [tiles, TILE]
        block_table: Tensor,  # [tiles, max_blocks] int64
        block_size: int,
        num_kv_heads: int,
    ) -> None:
        keys = torch.arange(first, first + SPLIT, device=positions.device)
        # Beyond the table any block will do: no row sees it.
        block = block_table[:, (keys // block_size).clamp(max=block_table.shape[1] - 1)]  # [tiles, SPLIT]
        heads = torch.arange(num_kv_heads, device=positions.device)[:, None]
        rows = (block[:, None] * num_kv_heads + heads) * block_size + keys % block_size
        self._rows = rows.flatten(0, 1)  # [tiles * KVH, SPLIT]
        is_hidden = (keys > positions[..., None]).repeat_interleave(num_kv_heads, dim=0)
        self.is_hidden = is_hidden  # [tiles * KVH, TILE, SPLIT]
        self._is_unused = is_hidden.all(dim=1)[..., None]  # [tiles * KVH, SPLIT, 1]

    def gather(self, k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [tiles * KVH, SPLIT, D]; a value that no row sees is 0, for 0 · NaN is NaN."""
        key, value = (cache.view(-1, cache.shape[-1])[self._rows] for cache in (k_cache, v_cache))
        return key, value.masked_fill_(self._is_unused, 0)


def _aligned(x: Tensor) -> Tensor:
    """Its last dimension zero-padded to a multiple of `_ALIGNMENT`; x itself where it is one."""
    missing = -x.shape[-1] % _ALIGNMENT
    return F.pad(x, (0, missing)) if missing else x
