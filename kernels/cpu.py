"""The CPU path: the same functions as `kernels/reference.py`, shaped for few cores.

A step's plan (which rows, which blocks, which masks) is made once and used by every layer. Decodes
of similar length are gathered and multiplied together; a prefill chunk runs by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.kv_shape import KvShape

PADDING_LIMIT = 2
"""Decodes share one gather while the longest has at most so many times the blocks of the shortest."""
GATHER_LIMIT = 16_384
"""Tokens that decodes gather at once, padding included, unless one alone has more: bounds the memory."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference's."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """As the reference's."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As the reference's. `x` may be a view whose last dimension is contiguous."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.empty(x.shape, dtype=x.dtype)
    out_first, out_second = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return rotated


class PagedStep:
    """Attention over the paged cache for one step's batch. Shapes as in the reference.

    Owns nothing: caches are passed in layer by layer and written at the step's slots.
    """

    def __init__(
        self,
        block_table: Tensor,  # [S, max_blocks] int32
        slot_mapping: Tensor,  # [T] int64
        cu_query_lens: Sequence[int],  # S + 1
        seq_lens: Sequence[int],  # S
        kv: KvShape,
    ) -> None:
        block_size, num_kv_heads = kv.block_size, kv.num_kv_heads
        heads = torch.arange(num_kv_heads)
        block, offset = slot_mapping // block_size, slot_mapping % block_size
        self._write_rows = ((block[:, None] * num_kv_heads + heads) * block_size + offset[:, None]).flatten()
        query_lens = [end - begin for begin, end in pairwise(cu_query_lens)]
        rows = block_table.long()[:, None, :] * num_kv_heads + heads[None, :, None]  # [S, KVH, max_blocks]
        decodes = [s for s, query_len in enumerate(query_lens) if query_len == 1]
        groups = _by_length(decodes, seq_lens, block_size)
        # One gather buffer for all groups and layers: fresh memory for each would cost more than the copy.
        most = max((len(group) * -(-seq_lens[group[0]] // block_size) for group in groups), default=0)
        shape = (most * num_kv_heads, block_size * kv.head_dim)
        buffers = torch.empty(shape, dtype=kv.cache_dtype), torch.empty(shape, dtype=kv.cache_dtype)
        self._groups = [_DecodeGroup(group, cu_query_lens, seq_lens, rows, kv, buffers) for group in groups]
        self._chunks = [
            _Chunk(cu_query_lens[s], query_len, seq_lens[s], rows[s], kv)
            for s, query_len in enumerate(query_lens)
            if query_len > 1
        ]

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Puts key and value [T, KVH, D] into the step's slots."""
        head_dim = key.shape[-1]
        for cache, x in ((k_cache, key), (v_cache, value)):
            stored = x.reshape(-1, head_dim).to(cache.dtype)
            cache.view(-1, head_dim).index_copy_(0, self._write_rows, stored)

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Causal attention of the step's queries [T, H, D]. Returns [T, H, D]."""
        output = torch.empty(query.shape, dtype=query.dtype)
        for group in self._groups:
            group.attend(query, k_cache, v_cache, output)
        for chunk in self._chunks:
            chunk.attend(query, k_cache, v_cache, output)
        return output


class _DecodeGroup:
    """Decodes gathered into one padded batch. A group of query heads takes the place of query rows."""

    def __init__(
        self,
        members: Sequence[int],
        cu_query_lens: Sequence[int],
        seq_lens: Sequence[int],
        rows: Tensor,
        kv: KvShape,
        buffers: tuple[Tensor, Tensor],
    ) -> None:
        self._tokens = torch.tensor([cu_query_lens[s] for s in members])
        lens = torch.tensor([seq_lens[s] for s in members])
        num_blocks = -(-int(lens.max()) // kv.block_size)
        self._rows = rows[torch.tensor(members), :, :num_blocks].flatten()
        self._length = num_blocks * kv.block_size
        is_padding = torch.arange(self._length) >= lens[:, None]
        mask = torch.zeros(is_padding.shape, dtype=kv.dtype).masked_fill_(is_padding, float("-inf"))
        self._mask = mask.repeat_interleave(kv.num_kv_heads, dim=0).unsqueeze(1)  # [members * KVH, 1, length]
        self._key, self._value = (buffer[: len(self._rows)] for buffer in buffers)
        self._scale = kv.scale

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor, output: Tensor) -> None:
        batch, head_dim = self._mask.shape[0], query.shape[-1]
        torch.index_select(_block_rows(k_cache), 0, self._rows, out=self._key)
        torch.index_select(_block_rows(v_cache), 0, self._rows, out=self._value)
        key, value = (x.view(batch, self._length, head_dim).to(query.dtype) for x in (self._key, self._value))
        grouped = query[self._tokens].view(batch, -1, head_dim)  # [members * KVH, H / KVH, D]
        scores = torch.baddbmm(self._mask, grouped, key.transpose(1, 2), alpha=self._scale)
        weights = scores.softmax(dim=-1)
        output[self._tokens] = torch.bmm(weights, value).view(len(self._tokens), -1, head_dim)


class _Chunk:
    """The queries of one sequence's prefill chunk, over its context and themselves."""

    def __init__(self, start: int, query_len: int, seq_len: int, rows: Tensor, kv: KvShape) -> None:
        self._tokens = slice(start, start + query_len)
        self._rows = rows[:, : -(-seq_len // kv.block_size)].flatten()
        self._num_kv_heads = kv.num_kv_heads
        self._seq_len = seq_len
        self._mask = torch.ones(query_len, seq_len, dtype=torch.bool).tril_(seq_len - query_len)
        self._scale = kv.scale

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor, output: Tensor) -> None:
        head_dim = query.shape[-1]
        key, value = (
            _block_rows(cache)[self._rows].view(1, self._num_kv_heads, -1, head_dim)[:, :, : self._seq_len]
            for cache in (k_cache, v_cache)
        )
        key, value = key.to(query.dtype), value.to(query.dtype)
        queries = query[self._tokens].transpose(0, 1).unsqueeze(0)  # [1, H, query_len, D]
        attended = F.scaled_dot_product_attention(
            queries, key, value, attn_mask=self._mask, scale=self._scale, enable_gqa=True
        )
        output[self._tokens] = attended[0].transpose(0, 1)


def _block_rows(cache: Tensor) -> Tensor:
    """The cache as [N * KVH, B * D]: a row is one block of one head, contiguous."""
    return cache.view(cache.shape[0] * cache.shape[1], -1)


def _by_length(members: Sequence[int], seq_lens: Sequence[int], block_size: int) -> list[list[int]]:
    """Members in groups of similar length, the longest first: padding is at most `PADDING_LIMIT` times
    the work, and a group gathers at most `GATHER_LIMIT` tokens."""
    groups: list[list[int]] = []
    for member in sorted(members, key=lambda s: seq_lens[s], reverse=True):
        blocks = -(-seq_lens[member] // block_size)
        longest = -(-seq_lens[groups[-1][0]] // block_size) if groups else 0
        gathered = (len(groups[-1]) + 1) * longest * block_size if groups else 0
        if groups and longest <= PADDING_LIMIT * blocks and gathered <= GATHER_LIMIT:
            groups[-1].append(member)
        else:
            groups.append([member])
    return groups
