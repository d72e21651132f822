"""Dense attention and its gradients without an L × L matrix.

Shapes: B batches of H query heads in H / KVH groups over KVH key heads; M queries and L keys of D values.

Why fused: written out, the scores of a head are M · L numbers that are written and read at least twice each
way. Here the forward pass reads q and writes out (2 · M · D values and M sums), and reads k and v once for
each tile of queries (2 · L · D). Only the logarithm of each row's sum is kept; the backward pass makes
the weights again from it: once tile by tile of keys for dk and dv, once tile by tile of queries for dq. Each
program owns what it writes, so there are no atomics, and equal inputs give equal bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.attention_tile import AttentionTile, backward_tile, forward_tile, generation
from kernels.tile_dot import tile_dot
from kernels.tuned_choice import heads_shape, tuned_choice

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _forward_kernel(
    q, k, v, out, lse, scale, num_queries, num_keys,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head over all keys that it sees."""
    # Offsets. The last tile of a causal head has most keys to see, so it starts first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    head = tl.program_id(1).to(tl.int64)
    query = first + tl.arange(0, QUERIES)
    d = tl.arange(0, PADDED_D)
    row = head * num_queries + query
    places = row[:, None] * D + d
    k += head // GROUP * num_keys * D
    v += head // GROUP * num_keys * D
    behind = num_keys - num_queries  # query i stands beside key i + behind
    is_query = (query < num_queries)[:, None] & (d < D)

    # Loads: the queries once; keys and values in turns, below.
    query_tile = tl.load(q + places, mask=is_query, other=0.0)
    acc = tl.zeros([QUERIES, PADDED_D], tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    top = tl.full([QUERIES], float("-inf"), tl.float32)

    # out = Σ exp(s - max s) · v / Σ exp(s - max s), with s = scale · q · k
    end, edge = tl.cdiv(num_keys, KEYS), num_keys // KEYS
    if CAUSAL:
        end = tl.cdiv(tl.minimum(first + behind + QUERIES, num_keys), KEYS)
        edge = tl.minimum(first + behind + 1, num_keys) // KEYS
    turns = 0, edge, end
    for part in tl.static_range(2):
        for turn in range(turns[part], turns[part + 1]):
            acc, total, top = _turn(
                acc, total, top, query_tile, k, v, turn * KEYS, query + behind, num_keys, scale,
                CAUSAL, D, KEYS, part == 1,
            )  # fmt: skip

    # lse = ln Σ exp(s)
    result = acc * (1.0 / total)[:, None]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=is_query)
    tl.store(lse + row, (top + tl.log2(total)) * LN_2, mask=query < num_queries)


@triton.jit
def _turn(
    acc, total, top, q, k, v, start, position, num_keys, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Folds the keys from `start` on into the running sums; outside an edge every query sees all of them."""
    # Offsets
    key = start + tl.arange(0, KEYS)
    d = tl.arange(0, acc.shape[1])
    is_there = (key < (num_keys if EDGE else start + KEYS))[:, None] & (d < D)

    # Loads
    key_tile = tl.load(k + key[:, None] * D + d, mask=is_there, other=0.0)
    value_tile = tl.load(v + key[:, None] * D + d, mask=is_there, other=0.0)

    # top' = max(top, s);  sums' = sums · exp(top - top') + Σ exp(s - top') · (v, 1)
    score = tile_dot(q, tl.trans(key_tile))
    if EDGE:
        score = tl.where(_is_seen(position[:, None], key[None, :], num_keys, CAUSAL), score, float("-inf"))
    unit = scale * LOG2_E
    new_top = tl.maximum(top, tl.max(score, 1) * unit)
    weight = tl.exp2(score * unit - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(weight, 1)
    acc = acc * fade[:, None] + tile_dot(weight.to(q.dtype), value_tile)
    return acc, total, new_top


@triton.jit
def _delta_kernel(out, d_out, delta, num_rows, D: tl.constexpr, PADDED_D: tl.constexpr, ROWS: tl.constexpr):
    """What the softmax takes from every gradient of a row's scores: Σ out · d_out."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, PADDED_D)
    places = row[:, None] * D + d
    is_there = (row < num_rows)[:, None] & (d < D)

    out_tile = tl.load(out + places, mask=is_there, other=0.0).to(tl.float32)
    d_out_tile = tl.load(d_out + places, mask=is_there, other=0.0).to(tl.float32)

    tl.store(delta + row, tl.sum(out_tile * d_out_tile, 1), mask=row < num_rows)


@triton.jit
def _key_gradients_kernel(
    q, k, v, d_out, lse, delta, d_k, d_v, scale, num_queries, num_keys,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one key head, over the queries of its whole group that see it."""
    # Offsets
    first = tl.program_id(0) * KEYS
    kv_head = tl.program_id(1).to(tl.int64)
    behind = num_keys - num_queries
    key = first + tl.arange(0, KEYS)
    d = tl.arange(0, PADDED_D)
    places = (kv_head * num_keys + key)[:, None] * D + d
    is_key = (key < num_keys)[:, None] & (d < D)
    begin = tl.maximum(first - behind, 0) // QUERIES * QUERIES if CAUSAL else 0
    turns = tl.cdiv(num_queries - begin, QUERIES)

    # Loads: the keys once; queries in turns.
    key_tile = tl.load(k + places, mask=is_key, other=0.0)
    value_tile = tl.load(v + places, mask=is_key, other=0.0)
    key_sum = tl.zeros([KEYS, PADDED_D], tl.float32)
    value_sum = tl.zeros([KEYS, PADDED_D], tl.float32)

    for turn in range(GROUP * turns):
        query = begin + turn % turns * QUERIES + tl.arange(0, QUERIES)
        row = (kv_head * GROUP + turn // turns) * num_queries + query
        is_query = query < num_queries
        is_row = is_query[:, None] & (d < D)
        query_tile = tl.load(q + row[:, None] * D + d, mask=is_row, other=0.0)
        d_out_tile = tl.load(d_out + row[:, None] * D + d, mask=is_row, other=0.0)
        # A query that is not there has a sum without end, so its weights are 0.
        log_sum = tl.load(lse + row, mask=is_query, other=float("inf"))
        taken = tl.load(delta + row, mask=is_query, other=0.0)

        # w = exp(s - lse);  dv = Σ w · d_out;  ds = w · (v · d_out - delta);  dk = scale · Σ ds · q
        score = tile_dot(key_tile, tl.trans(query_tile)) * (scale * LOG2_E)
        weight = tl.exp2(score - (log_sum * LOG2_E)[None, :])
        if CAUSAL:
            weight = tl.where(key[:, None] <= query[None, :] + behind, weight, 0.0)
        value_sum += tile_dot(weight.to(d_out_tile.dtype), d_out_tile)
        d_score = weight * (tile_dot(value_tile, tl.trans(d_out_tile)) - taken[None, :])
        key_sum += tile_dot(d_score.to(query_tile.dtype), query_tile)

    tl.store(d_k + places, (key_sum * scale).to(d_k.dtype.element_ty), mask=is_key)
    tl.store(d_v + places, value_sum.to(d_v.dtype.element_ty), mask=is_key)


@triton.jit
def _query_gradients_kernel(
    q, k, v, d_out, lse, delta, d_q, scale, num_queries, num_keys,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head, over the keys that it sees."""
    # Offsets
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    head = tl.program_id(1).to(tl.int64)
    query = first + tl.arange(0, QUERIES)
    d = tl.arange(0, PADDED_D)
    row = head * num_queries + query
    places = row[:, None] * D + d
    k += head // GROUP * num_keys * D
    v += head // GROUP * num_keys * D
    behind = num_keys - num_queries
    is_query = query < num_queries
    is_row = is_query[:, None] & (d < D)
    end = tl.minimum(first + behind + QUERIES, num_keys) if CAUSAL else num_keys

    # Loads: the queries once; keys in turns.
    query_tile = tl.load(q + places, mask=is_row, other=0.0)
    d_out_tile = tl.load(d_out + places, mask=is_row, other=0.0)
    log_sum = tl.load(lse + row, mask=is_query, other=float("inf"))
    taken = tl.load(delta + row, mask=is_query, other=0.0)
    query_sum = tl.zeros([QUERIES, PADDED_D], tl.float32)

    for start in range(0, end, KEYS):
        key = start + tl.arange(0, KEYS)
        is_key = (key < num_keys)[:, None] & (d < D)
        key_tile = tl.load(k + key[:, None] * D + d, mask=is_key, other=0.0)
        value_tile = tl.load(v + key[:, None] * D + d, mask=is_key, other=0.0)

        # w = exp(s - lse);  ds = w · (d_out · v - delta);  dq = scale · Σ ds · k
        score = tile_dot(query_tile, tl.trans(key_tile)) * (scale * LOG2_E)
        weight = tl.exp2(score - (log_sum * LOG2_E)[:, None])
        weight = tl.where(_is_seen(query[:, None] + behind, key[None, :], num_keys, CAUSAL), weight, 0.0)
        d_score = weight * (tile_dot(d_out_tile, tl.trans(value_tile)) - taken[:, None])
        query_sum += tile_dot(d_score.to(key_tile.dtype), key_tile)

    tl.store(d_q + places, (query_sum * scale).to(d_q.dtype.element_ty), mask=is_row)


@triton.jit
def _is_seen(position, key, num_keys, CAUSAL: tl.constexpr):
    is_seen = key < num_keys
    if CAUSAL:
        is_seen &= key <= position
    return is_seen


def flash_forward(
    q: Tensor,  # [B, H, M, D], contiguous
    k: Tensor,  # [B, KVH, L, D], contiguous
    v: Tensor,  # [B, KVH, L, D], contiguous
    scale: float,
    *,
    causal: bool,
    out: Tensor | None = None,  # [B, H, M, D], contiguous
    tile: AttentionTile | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale · q · kᵀ) · v, and the natural logarithms of the softmax's sums: [B, H, M] float32.

    Causal: the last query stands beside the last key, so query i sees keys up to i + L - M. `scale` > 0.
    Raises ValueError for tensors that do not fit, and for causal attention with more queries than keys, where
    some would see nothing.
    """
    _check(q, k, v, causal)
    batch, num_heads, num_queries = q.shape[:3]
    num_keys = k.shape[2]
    out = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    tile = tile or _tile("forward", q, k)
    grid = (triton.cdiv(num_queries, tile.num_rows), batch * num_heads)
    _forward_kernel[grid](q, k, v, out, lse, scale, num_queries, num_keys, **_constants(q, k, causal, tile))
    return out, lse


def flash_backward(
    d_out: Tensor,  # [B, H, M, D], contiguous
    q: Tensor,  # [B, H, M, D]
    k: Tensor,  # [B, KVH, L, D]
    v: Tensor,  # [B, KVH, L, D]
    out: Tensor,  # [B, H, M, D]
    lse: Tensor,  # [B, H, M] float32
    scale: float,
    *,
    causal: bool,
    tile: AttentionTile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v from that of `out`, with `out` and `lse` as `flash_forward` gave them.

    Raises ValueError for tensors that do not fit.
    """
    _check(q, k, v, causal)
    if not (d_out.is_contiguous() and out.is_contiguous() and lse.is_contiguous()):
        raise ValueError("the output, its gradient and its sums must be contiguous")
    batch, num_heads, num_queries = q.shape[:3]
    num_kv_heads, num_keys = k.shape[1:3]
    tile = tile or _tile("backward", q, k)
    delta = _delta(out, d_out)
    d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))
    sizes = (scale, num_queries, num_keys)
    constants = _constants(q, k, causal, tile)
    key_grid = (triton.cdiv(num_keys, tile.num_keys), batch * num_kv_heads)
    _key_gradients_kernel[key_grid](q, k, v, d_out, lse, delta, d_k, d_v, *sizes, **constants)
    query_grid = (triton.cdiv(num_queries, tile.num_rows), batch * num_heads)
    _query_gradients_kernel[query_grid](q, k, v, d_out, lse, delta, d_q, *sizes, **constants)
    return d_q, d_k, d_v


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, lse = flash_forward(q, k, v, scale, causal=causal)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.causal = scale, causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        d_out = d_outs[0].contiguous()
        q, k, v, out, lse = ctx.saved_tensors
        d_q, d_k, d_v = flash_backward(d_out, q, k, v, out, lse, ctx.scale, causal=ctx.causal)
        return d_q, d_k, d_v, None, None


def flash_attention(
    q: Tensor,  # [B, H, M, D]
    k: Tensor,  # [B, KVH, L, D]
    v: Tensor,  # [B, KVH, L, D]
    scale: float,
    *,
    causal: bool,
) -> Tensor:
    """`flash_forward` that autograd can go back through, once. Returns [B, H, M, D]."""
    attended: Tensor = _Flash.apply(q, k, v, scale, causal)  # type: ignore[no-untyped-call]
    return attended


def _delta(out: Tensor, d_out: Tensor) -> Tensor:
    """Σ out · d_out of each row: [B, H, M] float32."""
    delta = torch.empty(out.shape[:3], dtype=torch.float32, device=out.device)
    head_dim, rows = out.shape[3], 16
    _delta_kernel[(triton.cdiv(delta.numel(), rows),)](
        out, d_out, delta, delta.numel(), D=head_dim, PADDED_D=triton.next_power_of_2(head_dim), ROWS=rows
    )
    return delta


def _tile(way: str, q: Tensor, k: Tensor) -> AttentionTile:
    shape = heads_shape(q.dtype, q.shape[1], k.shape[1], q.shape[3], num_tokens=q.shape[2]) | {"way": way}
    if (tuned := tuned_choice("attention_flash", shape, q.device)) is not None:
        return tuned.tile(AttentionTile)
    choose = forward_tile if way == "forward" else backward_tile
    return choose(q.shape[3], q.dtype, generation(q.device))


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()) or k.shape != v.shape:
        raise ValueError("queries, keys and values must be contiguous, keys and values of one shape")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} heads cannot share {k.shape[1]} key heads")
    if causal and q.shape[2] > k.shape[2]:
        raise ValueError(f"causal attention of {q.shape[2]} queries over {k.shape[2]} keys")


def _constants(q: Tensor, k: Tensor, causal: bool, tile: AttentionTile) -> dict[str, Any]:
    head_dim = q.shape[3]
    return {
        "CAUSAL": causal,
        "GROUP": q.shape[1] // k.shape[1],
        "D": head_dim,
        "PADDED_D": triton.next_power_of_2(head_dim),
        "QUERIES": tile.num_rows,
        "KEYS": tile.num_keys,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
