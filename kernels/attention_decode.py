"""Attention of one query a sequence over paged keys and values: decode, with the keys split over programs.

Shapes: S sequences of one query each; H query heads in H / KVH groups over KVH key heads; D values a head;
N blocks of B slots.

Why fused: a step is bound by memory. It has to read each key and value once, 2 · seq_len · KVH · D values a
sequence, and does; scores and weights, H · seq_len values each, never leave the chip. All query heads of a
key head sit in one program, so its keys are read once for the group.

Why split: S · KVH programs may be fewer than the GPU has processors. The keys of a sequence are then dealt
to several programs, each with a softmax of its own, and a second kernel mixes what they found. That costs
8 · H · (D + 1) bytes a split to write and read, against 4 · keys · KVH · D of keys and values in float16.

A tile product has at least 16 rows, so with fewer heads a group most of it is spent on zeros. By arithmetic
that is free: 64 keys with D = 128 in float16 are 128 products of 16 × 8 × 16, some 256 clocks of an H100's
processor, whose share of the bandwidth brings those 32 KiB in some 2,200.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_tile import AttentionTile
from kernels.byte_pairs import KINDS, even_and_odd
from kernels.processors import num_processors
from kernels.tile_dot import tile_dot
from kernels.tuned_choice import Choice, heads_shape, tuned_choice

LOG2_E = tl.constexpr(math.log2(math.e))
MIN_SPLIT_KEYS = 256
"""Of a split that this module chooses: what is mixed is then 3 % of what is read, at four heads a group in
float16."""
MAX_SPLITS = 64
PROGRAMS_PER_PROCESSOR = 4
"""More than run at a time, for sequences differ in length."""
V_UNITS = {torch.int8: 128.0, torch.float8_e4m3fn: 512.0}
"""About the largest number of the type. A weight times a slot's scale may be too small for float16; times
this as well it is of the size of a value."""


@triton.jit
def _attend(
    query_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block_table_ptr, seq_lens_ptr, out_ptr, log_sums_ptr,
    scale, query_stride, out_stride, table_stride,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KVH: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr, PADDED_D: tl.constexpr, LINE: tl.constexpr, COLUMNS: tl.constexpr, PAIRED: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, V_UNIT: tl.constexpr,
):  # fmt: skip
    """One split of the keys of one sequence, for up to ROWS query heads of one key head."""
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) % KVH
    split = tl.program_id(2)
    row = tl.program_id(1) // KVH * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, PADDED_D)
    is_row = (row < GROUP)[:, None] & (dim < D)[None, :]
    head = kv_head * GROUP + row
    column = tl.arange(0, COLUMNS)
    seq_len = tl.load(seq_lens_ptr + sequence)
    first_tile, num_tiles, a_split = _share_out(seq_len, WINDOW, KEYS, SPLITS)
    begin = split * a_split
    end = tl.minimum(begin + a_split, num_tiles)
    if (SPLITS > 1) & (begin >= end):
        return  # the second kernel knows which splits are empty, and does not read them

    query = tl.load(query_ptr + sequence * query_stride + head[:, None] * D + dim[None, :], is_row, other=0.0)
    if PAIRED is not None:
        query, query_odd = tl.split(tl.reshape(query, [ROWS, COLUMNS, 2]))
        mixed_odd = tl.zeros([ROWS, COLUMNS], tl.float32)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, COLUMNS], tl.float32)

    # Keys come in tiles; best is the highest score so far, total and mixed are relative to it:
    #   higher = max(best, scores)        weights = 2^(scores - higher)        fading = 2^(best - higher)
    #   total = total · fading + Σ weights          mixed = mixed · fading + weights · values
    for tile in range(first_tile + begin, first_tile + end):
        position = tile * KEYS + tl.arange(0, KEYS)
        is_seen = position < seq_len
        if WINDOW is not None:
            is_seen &= position >= seq_len - WINDOW
        block = tl.load(block_table_ptr + sequence * table_stride + position // B, is_seen, other=0)
        slot = (block.to(tl.int64) * KVH + kv_head) * B + position % B
        is_number = is_seen[:, None] & (column < LINE)[None, :] if LINE < COLUMNS else is_seen[:, None]
        key = tl.load(k_ptr + slot[:, None] * LINE + column[None, :], is_number, other=0)
        value = tl.load(v_ptr + slot[:, None] * LINE + column[None, :], is_number, other=0)

        if PAIRED is None:
            scores = tile_dot(query, tl.trans(key.to(query.dtype)))
        else:
            key, key_odd = even_and_odd(key, PAIRED, query.dtype)
            scores = tile_dot(query, tl.trans(key)) + tile_dot(query_odd, tl.trans(key_odd))
        scores *= scale
        if k_scale_ptr is not None:
            scores *= tl.load(k_scale_ptr + slot, is_seen, other=0.0)[None, :]
        if SOFT_CAP is not None:
            scores = _tanh(scores) * (SOFT_CAP * LOG2_E)
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        fading = tl.exp2(best - higher)
        best = higher
        total = total * fading + tl.sum(weights, axis=1)
        if v_scale_ptr is not None:
            weights *= (tl.load(v_scale_ptr + slot, is_seen, other=0.0) * V_UNIT)[None, :]
        weights = weights.to(query.dtype)
        if PAIRED is None:
            mixed = mixed * fading[:, None] + tile_dot(weights, value.to(query.dtype))
        else:
            value, value_odd = even_and_odd(value, PAIRED, query.dtype)
            mixed = mixed * fading[:, None] + tile_dot(weights, value)
            mixed_odd = mixed_odd * fading[:, None] + tile_dot(weights, value_odd)

    if PAIRED is not None:
        mixed = tl.reshape(tl.join(mixed, mixed_odd), [ROWS, PADDED_D])
    mixed = mixed / (tl.where(total == 0.0, 1.0, total) * V_UNIT)[:, None]
    target = out_ptr + sequence * out_stride + (head[:, None] * SPLITS + split) * D + dim[None, :]
    tl.store(target, mixed.to(out_ptr.dtype.element_ty), is_row)
    if SPLITS > 1:
        target = log_sums_ptr + (sequence * KVH * GROUP + head) * SPLITS + split
        tl.store(target, best + tl.log2(total), row < GROUP)


@triton.jit
def _combine(
    partial_ptr, log_sums_ptr, seq_lens_ptr, out_ptr, out_stride, num_heads,
    WINDOW: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Mixes what the splits of one head of one sequence found."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, PADDED_D)
    first = (sequence * num_heads + head) * SPLITS
    seq_len = tl.load(seq_lens_ptr + sequence)
    _, num_tiles, a_split = _share_out(seq_len, WINDOW, KEYS, SPLITS)
    num_live = tl.cdiv(num_tiles, a_split)

    every = tl.arange(0, PADDED_SPLITS)
    log_sums = tl.load(log_sums_ptr + first + every, every < num_live, other=float("-inf"))

    # A split's share is its sum of weights over that of all: 2^log_sum / Σ 2^log_sum, relative to the best.
    best = tl.where(num_live > 0, tl.max(log_sums, axis=0), 0.0)
    total = tl.sum(tl.exp2(log_sums - best), axis=0)
    mixed = tl.zeros([PADDED_D], tl.float32)
    for turn in range(0, num_live, TURN):
        split = turn + tl.arange(0, TURN)
        is_live = split < num_live
        share = tl.exp2(tl.load(log_sums_ptr + first + split, is_live, other=float("-inf")) - best)
        place = partial_ptr + (first + split)[:, None] * D + dim[None, :]
        partial = tl.load(place, is_live[:, None] & (dim < D)[None, :], other=0.0)
        mixed += tl.sum(partial * share[:, None], axis=0)
    mixed = mixed / tl.where(num_live > 0, total, 1.0)

    tl.store(out_ptr + sequence * out_stride + head * D + dim, mixed.to(out_ptr.dtype.element_ty), dim < D)


@triton.jit
def _share_out(seq_len, WINDOW: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr):
    """The first tile of keys that is seen, the number of tiles from there on, and how many a split gets.

    Tiles are counted from the sequence's first key, so that a window moves over them.
    """
    first_tile = 0
    if WINDOW is not None:
        first_tile = tl.maximum(seq_len - WINDOW, 0) // KEYS
    num_tiles = tl.cdiv(seq_len, KEYS) - first_tile
    return first_tile, num_tiles, tl.maximum(tl.cdiv(num_tiles, SPLITS), 1)


@triton.jit
def _tanh(x):
    """1 - 2 / (e^2x + 1)"""
    return 1.0 - 2.0 / (tl.exp2(x * (2.0 * LOG2_E)) + 1.0)


def paged_decode(
    query: Tensor,  # [S, H, D]
    k_cache: Tensor,  # [N, KVH, B, D]: query's type or another float, int8, float8_e4m3fn
    v_cache: Tensor,  # [N, KVH, B, D]
    block_table: Tensor,  # [S, max_blocks] int32
    seq_lens: Tensor,  # [S] int32: tokens of the sequence, the query's included; 0 for padding
    scale: float,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scale: Tensor | None = None,  # [N, KVH, B] float32: a cached number stands for itself times this
    v_scale: Tensor | None = None,  # [N, KVH, B] float32
    num_splits: int | None = None,
    out: Tensor | None = None,  # [S, H, D]
    workspace: Tensor | None = None,  # [at least workspace_numel] float32
    tile: AttentionTile | None = None,
) -> Tensor:
    """Attention of each sequence's last token over its keys. Returns `out`, [S, H, D] in query's type.

    The token sees all keys of its sequence, with a window only the last `window` of them. Scores are
    query · key · scale, with a soft cap soft_cap · tanh(scores / soft_cap). A padding row gives zeros.

    No value of a tensor is read on the host and the grid depends on shapes alone, so a CUDA graph may hold
    the call; with `out` and `workspace` given nothing is allocated. Slots that hold no token, or one behind
    the window, are not read, nor are the table's entries for them.

    Raises ValueError for tensors that do not fit.
    """
    out = query.new_empty(query.shape) if out is None else out
    _check(query, out, k_cache, v_cache, k_scale, v_scale, window, num_splits)
    num_seqs, num_heads, head_dim = query.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    max_keys = block_table.shape[1] * block_size
    if tile is None and (tuned := _tuned(query, k_cache, max_keys)) is not None:
        tile, num_splits = tuned.tile(AttentionTile), num_splits or tuned.num_splits
    tile = tile or default_tile(head_dim, query.dtype, k_cache.dtype)
    if num_splits is None:
        max_keys = max_keys if window is None else min(max_keys, window)
        num_splits = choose_num_splits(num_seqs * num_kv_heads, max_keys, query.device)
    constants = decode_constants(
        num_heads, k_cache, tile, num_splits, window=window, soft_cap=soft_cap, is_scaled=k_scale is not None
    )
    partial, log_sums = _splits_of(workspace, query, num_splits) if num_splits > 1 else (out, None)
    row_tiles = triton.cdiv(constants["GROUP"], constants["ROWS"])
    _attend[(num_seqs, num_kv_heads * row_tiles, num_splits)](
        query, _as_pairs(k_cache), _as_pairs(v_cache), k_scale, v_scale, block_table, seq_lens,
        partial, log_sums,
        scale * LOG2_E.value if soft_cap is None else scale / soft_cap,
        query.stride(0), partial.stride(0), block_table.stride(0),
        **constants, num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if num_splits > 1:
        _combine[(num_seqs, num_heads)](
            partial, log_sums, seq_lens, out, out.stride(0), num_heads,
            **combine_constants(constants), num_warps=4,
        )  # fmt: skip
    return out


def workspace_numel(num_seqs: int, num_heads: int, head_dim: int, num_splits: int) -> int:
    """Numbers in float32 that a call with more than one split needs: [S, H, splits, D] and [S, H, splits]."""
    return num_seqs * num_heads * num_splits * (head_dim + 1) if num_splits > 1 else 0


def choose_num_splits(num_programs: int, max_keys: int, device: torch.device) -> int:
    """Enough to fill the device with `num_programs` (S · KVH) times as many, if keys suffice: 1, 2, 4, …

    A power of two, for each number is a compilation of its own.
    """
    missing = triton.cdiv(PROGRAMS_PER_PROCESSOR * num_processors(device), max(num_programs, 1))
    most = min(missing, max_keys // MIN_SPLIT_KEYS, MAX_SPLITS)
    return 1 << (most.bit_length() - 1) if most > 1 else 1


def default_tile(head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> AttentionTile:
    """At most so many heads of a group in a program, and so many keys a turn.

    Chosen by what the compiler makes of it, not by speed: no spills, and with 16 rows of float16 two programs
    or more fit into the shared memory of an A100. Half of the stages go into the way through the block table:
    five hold two tiles of keys and values. int8 has one, for with two sm_100 spills: 64 KiB of a processor's
    programs together, where a B200 brings 23 in the 800 cycles of a load.
    """
    if dtype == torch.float32:  # no tensor cores, so a product lives in registers
        return AttentionTile(num_rows=16, num_keys=16, num_warps=4, num_stages=5)
    if head_dim > 128:
        return AttentionTile(num_rows=32, num_keys=32, num_warps=4, num_stages=5)
    return AttentionTile(
        num_rows=64, num_keys=64, num_warps=4, num_stages=4 if cache_dtype == torch.int8 else 5
    )


def _tuned(query: Tensor, cache: Tensor, max_keys: int) -> Choice | None:
    """For caches of the query's type: those of bytes have tiles of their own."""
    if cache.dtype != query.dtype:
        return None
    num_seqs, num_heads, head_dim = query.shape
    sizes = {"num_seqs": num_seqs, "max_len": max_keys}
    shape = heads_shape(query.dtype, num_heads, cache.shape[1], head_dim, **sizes)
    return tuned_choice("attention_decode", shape, query.device)


def decode_constants(
    num_heads: int,
    cache: Tensor,  # [N, KVH, B, D]
    tile: AttentionTile,
    num_splits: int,
    *,
    window: int | None,
    soft_cap: float | None,
    is_scaled: bool,
) -> dict[str, Any]:
    """What `_attend` is compiled for."""
    _, num_kv_heads, block_size, head_dim = cache.shape
    group = num_heads // num_kv_heads
    width = 2 if cache.dtype in KINDS else 1  # head values in one element
    padded_d = max(16 * width, triton.next_power_of_2(head_dim))  # a product sums at least 16
    return {
        "WINDOW": window,
        "SOFT_CAP": soft_cap,
        "GROUP": group,
        "ROWS": min(max(16, triton.next_power_of_2(group)), tile.num_rows),
        "KVH": num_kv_heads,
        "B": block_size,
        "D": head_dim,
        "PADDED_D": padded_d,
        "LINE": head_dim // width,
        "COLUMNS": padded_d // width,
        "PAIRED": KINDS.get(cache.dtype),
        "KEYS": tile.num_keys,
        "SPLITS": num_splits,
        "V_UNIT": V_UNITS.get(cache.dtype, 1.0) if is_scaled else 1.0,
    }


def combine_constants(constants: dict[str, Any]) -> dict[str, Any]:
    """What `_combine` is compiled for, after an `_attend` with `constants`."""
    shared = {name: constants[name] for name in ("WINDOW", "D", "PADDED_D", "KEYS", "SPLITS")}
    padded = triton.next_power_of_2(constants["SPLITS"])
    return shared | {"PADDED_SPLITS": padded, "TURN": min(padded, 16)}


def _splits_of(workspace: Tensor | None, query: Tensor, num_splits: int) -> tuple[Tensor, Tensor]:
    """Each split's mixed values [S, H · splits, D] and logarithm of its sum of weights [S · H · splits]."""
    num_seqs, num_heads, head_dim = query.shape
    numel = workspace_numel(num_seqs, num_heads, head_dim, num_splits)
    if workspace is None:
        workspace = torch.empty(numel, dtype=torch.float32, device=query.device)
    if workspace.dtype != torch.float32 or workspace.numel() < numel:
        raise ValueError(f"the workspace must hold {numel} numbers of float32")
    num_values = num_seqs * num_heads * num_splits * head_dim
    values = workspace[:num_values].view(num_seqs, num_heads * num_splits, head_dim)
    return values, workspace[num_values:numel]


def _as_pairs(cache: Tensor) -> Tensor:
    return cache.view(torch.int16) if cache.dtype in KINDS else cache


def _check(
    query: Tensor,
    out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    window: int | None,
    num_splits: int | None,
) -> None:
    if any(x.stride()[1:] != (x.shape[2], 1) for x in (query, out)):
        raise ValueError("a token's heads must lie one behind the other")
    if k_cache.shape != v_cache.shape or not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("the caches must be contiguous and of one shape")
    if query.shape[1] % k_cache.shape[1]:
        raise ValueError(f"{query.shape[1]} heads cannot share {k_cache.shape[1]} key heads")
    if k_cache.dtype in KINDS and k_cache.shape[3] % 2:
        raise ValueError("a cache of bytes must have heads of even size")
    if (k_scale is None) != (v_scale is None):
        raise ValueError("keys and values must both have scales, or neither")
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} keys sees nothing")
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"{num_splits} splits see nothing")
