"""Each op's public function, called with tensors that have shapes and no data.

What a configuration or the tuner gives is plain data: numbers, and types by their torch name. `arch` says
for whom tiles are chosen where none is given, which the functions would read from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels.attention_decode import paged_decode
from kernels.attention_flash import flash_backward, flash_forward
from kernels.attention_prefill import paged_prefill
from kernels.attention_tile import AttentionTile, backward_tile, forward_tile
from kernels.kv_write import kv_write as write
from kernels.rms_norm import add_rms_norm
from kernels.rms_norm import rms_norm as norm
from kernels.rope import rope as rotate
from kernels.silu_mul import silu_mul as gate

BLOCK_SIZE = 16
NUM_BLOCKS = 4096


def attention_decode(
    arch: str, *, num_seqs: int, num_heads: int, num_kv_heads: int, head_dim: int, max_len: int,
    dtype: str = "float16", cache: str | None = None, window: int | None = None,
    soft_cap: float | None = None, num_splits: int | None = None, tile: Sequence[int] | None = None,
) -> None:  # fmt: skip
    k_cache, scale = _cache(num_kv_heads, head_dim, cache or dtype)
    paged_decode(
        _empty(dtype, num_seqs, num_heads, head_dim), k_cache, k_cache,
        _empty("int32", num_seqs, max_len // BLOCK_SIZE), _empty("int32", num_seqs), 1.0,
        window=window, soft_cap=soft_cap, k_scale=scale, v_scale=scale,
        num_splits=num_splits, tile=None if tile is None else AttentionTile(*tile),
    )  # fmt: skip


def attention_prefill(
    arch: str, *, num_seqs: int, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int,
    max_len: int,
    dtype: str = "float16", cache: str | None = None, window: int | None = None,
    soft_cap: float | None = None, tile: Sequence[int] | None = None,
) -> None:  # fmt: skip
    k_cache, scale = _cache(num_kv_heads, head_dim, cache or dtype)
    paged_prefill(
        _empty(dtype, num_tokens, num_heads, head_dim), k_cache, k_cache,
        _empty("int32", num_seqs, max_len // BLOCK_SIZE), _empty("int32", num_seqs + 1),
        _empty("int32", num_seqs), 1.0, max_query_len=num_tokens,
        window=window, soft_cap=soft_cap, k_scale=scale, v_scale=scale,
        tile=_tile(tile, forward_tile, head_dim, dtype, arch),
    )  # fmt: skip


def attention_flash(
    arch: str, *, num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int, is_causal: bool = True,
    is_backward: bool = False, dtype: str = "float16", tile: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """Forward or backward alone: the backward pass is given what the forward one would give."""
    q = _empty(dtype, 1, num_heads, num_tokens, head_dim)
    k = _empty(dtype, 1, num_kv_heads, num_tokens, head_dim)
    choose = backward_tile if is_backward else forward_tile
    cut = _tile(tile, choose, head_dim, dtype, arch)
    if is_backward:
        sums = _empty("float32", 1, num_heads, num_tokens)
        flash_backward(q, q, k, k, q, sums, 1.0, causal=is_causal, tile=cut)
    else:
        flash_forward(q, k, k, 1.0, causal=is_causal, tile=cut)


def kv_write(
    arch: str,
    *,
    num_tokens: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: str = "float16",
    cache: str | None = None,
) -> None:
    key = _empty(dtype, num_tokens, num_kv_heads, head_dim)
    k_cache, scale = _cache(num_kv_heads, head_dim, cache or dtype)
    write(key, key, k_cache, k_cache, _empty("int64", num_tokens), scale, scale)


def rms_norm(
    arch: str, *, num_tokens: int, hidden: int, dtype: str = "float16", has_residual: bool = False
) -> None:
    x, weight = _empty(dtype, num_tokens, hidden), _empty(dtype, hidden)
    if has_residual:
        add_rms_norm(x, x, weight, 1e-5)
    else:
        norm(x, weight, 1e-5)


def rope(arch: str, *, num_tokens: int, num_heads: int, head_dim: int, dtype: str = "float16") -> None:
    table = _empty("float32", 4096, head_dim // 2)
    rotate(_empty(dtype, num_tokens, num_heads, head_dim), table, table, _empty("int64", num_tokens))


def silu_mul(arch: str, *, num_tokens: int, inner: int, dtype: str = "float16") -> None:
    gate(_empty(dtype, num_tokens, 2 * inner))


CALLS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (attention_decode, attention_prefill, attention_flash, kv_write, rms_norm, rope, silu_mul)
}


def _tile(
    given: Sequence[int] | None, choose: Callable[[int, torch.dtype, int], AttentionTile],
    head_dim: int, dtype: str, arch: str,
) -> AttentionTile:  # fmt: skip
    generation = int(arch.removeprefix("sm_")) // 10
    return choose(head_dim, _dtype(dtype), generation) if given is None else AttentionTile(*given)


def _cache(num_kv_heads: int, head_dim: int, dtype: str) -> tuple[Tensor, Tensor | None]:
    """Keys or values, and the scales that a quantised type has."""
    cache = _empty(dtype, NUM_BLOCKS, num_kv_heads, BLOCK_SIZE, head_dim)
    is_quantised = dtype in ("int8", "float8_e4m3fn")
    return cache, _empty("float32", NUM_BLOCKS, num_kv_heads, BLOCK_SIZE) if is_quantised else None


def _empty(dtype: str, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=_dtype(dtype), device="meta")


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
