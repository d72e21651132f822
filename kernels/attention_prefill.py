"""Attention of many queries a sequence over paged keys and values: prefill, chunked or behind a prefix.

Shapes: T tokens of S sequences, flattened; H query heads in H / KVH groups over KVH key heads; D values a
head; N blocks of B slots.

Why fused: the scores never leave the chip. A head with n queries over L keys would write and read n · L of
them; here it moves 2 · n · D values of queries and outputs, and 2 · L · D of keys and values for each tile of
queries. The query heads of a key head share a tile, so that keys and values are read once for all of them.

Tiles are powers of two wide: heads of 80 and 96 values are multiplied as 128, 1.6 and 1.3 times the work.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_tile import AttentionTile, forward_tile, generation
from kernels.block_lists import BlockLists
from kernels.byte_pairs import KINDS, even_and_odd
from kernels.tile_dot import tile_dot
from kernels.tuned_choice import heads_shape, tuned_choice

LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-1.0e30)
"""Below every score, and finite: where all keys are masked, exp2(-inf - LEAST) is 0, not NaN."""


@triton.jit
def _prefill(
    query, k_cache, v_cache, k_scale, v_scale, out, block_table, cu_query_lens, seq_lens,
    num_visits, key_blocks, is_full, scale, query_stride, out_stride, table_stride, list_stride, visit_stride,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, LIST_QUERIES: tl.constexpr, LIST_KEYS: tl.constexpr,
    GROUP: tl.constexpr, KVH: tl.constexpr, B: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr,
    PAIRED: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """QUERIES queries of one sequence, with all heads of one group: GROUP rows a query."""
    # Offsets. The last tile of a sequence has most keys to see, so it starts first.
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    kv_head, sequence = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first_token = tl.load(cu_query_lens + sequence)
    num_queries = tl.load(cu_query_lens + sequence + 1) - first_token
    if first_query >= num_queries:
        return
    seq_len = tl.load(seq_lens + sequence)
    table = block_table + sequence * table_stride
    row = tl.arange(0, ROWS)
    own_query = first_query + row // GROUP
    token = (first_token + own_query).to(tl.int64)[:, None]
    d = tl.arange(0, PADDED_D)
    place = (kv_head * GROUP + row % GROUP)[:, None] * D + d
    is_own = ((row < QUERIES * GROUP) & (own_query < num_queries))[:, None] & (d < D)
    first = seq_len - num_queries + first_query  # where this tile's first query stands
    position = first + row // GROUP

    # Queries are loaded once, keys and values in turns.
    q = tl.load(query + token * query_stride + place, is_own, other=0.0)
    acc = tl.zeros([ROWS, PADDED_D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], LEAST, tl.float32)

    # out = Σ exp(s - max s) · v / Σ exp(s - max s), with s = scale · q · k
    turns = _turns(first, seq_len, WINDOW, QUERIES, KEYS)
    if LIST_QUERIES is not None:
        list_row = sequence * list_stride + first_query // LIST_QUERIES
        turns = 0, 0, 0, tl.load(num_visits + list_row) * (LIST_KEYS // KEYS)
    for part in tl.static_range(3):
        for turn in range(turns[part], turns[part + 1]):
            start, sees_all = turn * KEYS, False
            if LIST_QUERIES is not None:
                visit = list_row * visit_stride + turn // (LIST_KEYS // KEYS)
                start = tl.load(key_blocks + visit) * LIST_KEYS + turn % (LIST_KEYS // KEYS) * KEYS
                sees_all = tl.load(is_full + visit) != 0
            acc, total, top = _turn(
                acc, total, top, q, k_cache, v_cache, k_scale, v_scale, table, kv_head, start, first,
                position, seq_len, sees_all, scale, SOFT_CAP, WINDOW, KVH, B, D, PAIRED, KEYS, part != 1,
            )  # fmt: skip

    # A row that saw nothing has a total of 0 and gives zeros.
    result = acc * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    tl.store(out + token * out_stride + place, result.to(out.dtype.element_ty), is_own)


@triton.jit
def _turns(first, seq_len, WINDOW: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """For the queries from position `first` on: the first turn, where the window's edge ends and all of them
    see all keys, where the causal edge begins, and the end."""
    end = tl.cdiv(tl.maximum(tl.minimum(first + QUERIES, seq_len), 0), KEYS)
    edge = tl.maximum(first + 1, 0) // KEYS
    begin, inside = 0, 0
    if WINDOW is not None:
        begin = tl.maximum(first - WINDOW + 1, 0) // KEYS
        inside = tl.minimum(tl.cdiv(tl.maximum(first + QUERIES - WINDOW, 0), KEYS), edge)
    return begin, inside, edge, end


@triton.jit
def _turn(
    acc, total, top, q, k_cache, v_cache, k_scale, v_scale, table, kv_head, start, first, position, seq_len,
    sees_all, scale, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, KVH: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr, PAIRED: tl.constexpr, KEYS: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Folds the keys from `start` on into the running sums; outside an edge every row sees all of them."""
    # Offsets
    key = start + tl.arange(0, KEYS)
    is_key = key < (seq_len if EDGE else start + KEYS)
    if EDGE and WINDOW is not None:  # what lies behind the window of all may be gone
        is_key &= (key > first - WINDOW) | sees_all
    slot = (tl.load(table + key // B, is_key, other=0).to(tl.int64) * KVH + kv_head) * B + key % B

    # Loads
    k = _load(k_cache, slot, is_key, D, acc.shape[1], PAIRED, q.dtype)
    v = _load(v_cache, slot, is_key, D, acc.shape[1], PAIRED, q.dtype if v_scale is None else tl.float32)
    if v_scale is not None:
        v = (v * tl.load(v_scale + slot, is_key, other=0.0)[:, None]).to(q.dtype)

    # s = q · k · k_scale, where one of s is `unit` powers of two
    score = tile_dot(q, tl.trans(k))
    unit = scale * LOG2_E
    if k_scale is not None:
        score *= tl.load(k_scale + slot, is_key, other=0.0)
    if SOFT_CAP is not None:
        score = _tanh(score * (scale / SOFT_CAP))
        unit = SOFT_CAP * LOG2_E
    if EDGE:
        is_seen = key <= position[:, None]
        if WINDOW is not None:
            is_seen &= key > position[:, None] - WINDOW
        score = tl.where((is_seen | sees_all) & is_key, score, float("-inf"))

    # top' = max(top, max s);  sums' = sums · exp(top - top') + Σ exp(s - top') · (v, 1)
    new_top = tl.maximum(top, tl.max(score, 1) * unit)
    weight = tl.exp2(score * unit - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(weight, 1)
    acc = acc * fade[:, None] + tile_dot(weight.to(q.dtype), v)
    return acc, total, new_top


@triton.jit
def _load(
    cache, slot, is_key, D: tl.constexpr, PADDED_D: tl.constexpr, PAIRED: tl.constexpr, DTYPE: tl.constexpr
):
    """Keys or values of the slots, [KEYS, PADDED_D]. Pairs of bytes are widened here, once for all rows."""
    if PAIRED is None:
        d = tl.arange(0, PADDED_D)
        return tl.load(cache + slot[:, None] * D + d, is_key[:, None] & (d < D), other=0.0).to(DTYPE)
    else:
        pair = tl.arange(0, PADDED_D // 2)
        pairs = tl.load(cache + slot[:, None] * (D // 2) + pair, is_key[:, None] & (pair < D // 2), other=0)
        even, odd = even_and_odd(pairs, PAIRED, DTYPE)
        return tl.interleave(even, odd)


@triton.jit
def _tanh(x):
    """From exp(-2|x|), which never overflows."""
    shrunk = tl.exp(-2.0 * tl.abs(x))
    return tl.where(x < 0.0, -1.0, 1.0) * (1.0 - shrunk) / (1.0 + shrunk)


def paged_prefill(
    query: Tensor,  # [T, H, D], each token's heads contiguous
    k_cache: Tensor,  # [N, KVH, B, D]: query's type or another float, int8, float8_e4m3fn
    v_cache: Tensor,  # [N, KVH, B, D]
    block_table: Tensor,  # [S, max_blocks] int32
    cu_query_lens: Tensor,  # [S + 1] int32
    seq_lens: Tensor,  # [S] int32: tokens of the sequence up to its last query
    scale: float,
    *,
    max_query_len: int,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scale: Tensor | None = None,  # [N, KVH, B] float32: a cached number stands for itself times this
    v_scale: Tensor | None = None,  # [N, KVH, B] float32
    block_lists: BlockLists | None = None,
    out: Tensor | None = None,  # [T, H, D], each token's heads contiguous
    tile: AttentionTile | None = None,
) -> Tensor:
    """Attention of each sequence's last queries over its keys. Returns `out`, [T, H, D].

    Query j of a sequence with n ≤ `max_query_len` queries stands at position p = seq_len - n + j and sees the
    keys up to p: with a window only the last `window` of them, with block lists those that
    `kernels/block_lists.py` says. Scores are scale · query · key, `scale` > 0, with a soft cap
    soft_cap · tanh(scores / soft_cap). A query that sees no key gives zeros. Tokens behind the last
    sequence are not written; in a new `out` they are zero.

    Nothing is read back from the device, and the grid depends on shapes and `max_query_len` alone: a CUDA
    graph may hold the call. Slots that no query of a tile sees, such as those
    without a token or behind the window, are not read for it.

    Raises ValueError for tensors that do not fit.
    """
    _check(query, k_cache, v_cache, k_scale, v_scale, block_lists, max_query_len)
    tile = tile or _tile(query, k_cache, block_table.shape[1] * k_cache.shape[2])
    out = torch.zeros_like(query) if out is None else out
    constants = prefill_constants(
        query.shape, k_cache.shape, k_cache.dtype, tile, window, soft_cap, _list_sizes(block_lists)
    )
    lists = (None, None, None) if block_lists is None else _list_tensors(block_lists)
    list_strides = (0, 0) if block_lists is None else block_lists.key_blocks.shape[1:]
    _prefill[(triton.cdiv(max_query_len, constants["QUERIES"]), k_cache.shape[1], len(seq_lens))](
        query, _as_pairs(k_cache), _as_pairs(v_cache), k_scale, v_scale, out, block_table, cu_query_lens,
        seq_lens, *lists, scale, query.stride(0), out.stride(0), block_table.stride(0), *list_strides,
        **constants, num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out


def _tile(query: Tensor, cache: Tensor, max_keys: int) -> AttentionTile:
    """What was tuned holds for caches of the query's type."""
    num_tokens, num_heads, head_dim = query.shape
    sizes = {"num_tokens": num_tokens, "max_len": max_keys}
    shape = heads_shape(query.dtype, num_heads, cache.shape[1], head_dim, **sizes)
    tuned = tuned_choice("attention_prefill", shape, query.device) if cache.dtype == query.dtype else None
    if tuned is not None:
        return tuned.tile(AttentionTile)
    return forward_tile(head_dim, query.dtype, generation(query.device))


def prefill_constants(
    query_shape: torch.Size | tuple[int, ...],
    cache_shape: torch.Size | tuple[int, ...],
    cache_dtype: torch.dtype,
    tile: AttentionTile,
    window: int | None = None,
    soft_cap: float | None = None,
    list_sizes: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """What `_prefill` is compiled for. Blocks of lists, of (queries, keys), are whole numbers of tiles."""
    _, num_heads, head_dim = query_shape
    _, num_kv_heads, block_size, _ = cache_shape
    group = num_heads // num_kv_heads
    queries, keys = max(1, tile.num_rows // group), tile.num_keys
    if list_sizes is not None:
        queries = max(n for n in range(1, queries + 1) if list_sizes[0] % n == 0)
        keys = min(keys, list_sizes[1] & -list_sizes[1])
    return {
        "SOFT_CAP": soft_cap,
        "WINDOW": window,
        "LIST_QUERIES": None if list_sizes is None else list_sizes[0],
        "LIST_KEYS": None if list_sizes is None else list_sizes[1],
        "GROUP": group,
        "KVH": num_kv_heads,
        "B": block_size,
        "D": head_dim,
        "PADDED_D": triton.next_power_of_2(head_dim),
        "PAIRED": KINDS.get(cache_dtype),
        "QUERIES": queries,
        "ROWS": max(16, triton.next_power_of_2(queries * group)),
        "KEYS": keys,
    }


def _list_sizes(lists: BlockLists | None) -> tuple[int, int] | None:
    return None if lists is None else (lists.query_block_size, lists.key_block_size)


def _list_tensors(lists: BlockLists) -> tuple[Tensor, Tensor, Tensor]:
    return lists.num_visits, lists.key_blocks, lists.is_full.view(torch.int8)


def _as_pairs(cache: Tensor) -> Tensor:
    return cache.view(torch.int16) if cache.dtype in KINDS else cache


def _check(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None,
    lists: BlockLists | None, max_query_len: int,
) -> None:  # fmt: skip
    if query.stride(2) != 1 or query.stride(1) != query.shape[2]:
        raise ValueError("the heads of a query must lie one behind the other")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()) or k_cache.shape != v_cache.shape:
        raise ValueError("the caches must be contiguous and of one shape")
    if (k_scale is None) != (v_scale is None):
        raise ValueError("keys and values must both have scales, or neither")
    if query.shape[1] % k_cache.shape[1]:
        raise ValueError(f"{query.shape[1]} heads cannot share {k_cache.shape[1]} key heads")
    if lists is None:
        return
    if lists.key_block_size % 16:
        raise ValueError(f"blocks of {lists.key_block_size} keys: not a multiple of 16")
    if lists.num_visits.shape[1] * lists.query_block_size < max_query_len:
        raise ValueError(f"lists of {lists.num_visits.shape[1]} blocks do not hold {max_query_len} queries")
