"""Each op's public function with tensors of a shape: for the compiler without data, for a GPU with some.

What a configuration or the tuner gives is plain data: numbers, and types by their torch name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from kernels.attention_decode import paged_decode
from kernels.attention_flash import flash_backward, flash_forward
from kernels.attention_prefill import paged_prefill
from kernels.attention_tile import AttentionTile, backward_tile, forward_tile
from kernels.audit.bench_tensors import BenchTensors
from kernels.gpus import arch_number
from kernels.kv_write import kv_write as write
from kernels.matmul_quant import matmul_quant as multiply
from kernels.matmul_tile import MatmulTile
from kernels.matmul_w8a8 import matmul_w8a8 as multiply_codes
from kernels.rms_norm import add_rms_norm
from kernels.rms_norm import rms_norm as norm
from kernels.roofline import BLOCK_SIZE
from kernels.rope import rope as rotate
from kernels.sample import sample as draw
from kernels.sample_rows import LogitEdits, RowSampling
from kernels.silu_mul import silu_mul as gate

Call = Callable[[], object]
"""The op, on tensors that were made before."""


def attention_decode(
    tensors: BenchTensors, arch: str, *, num_seqs: int, num_heads: int, num_kv_heads: int, head_dim: int,
    max_len: int, dtype: str = "float16", cache: str | None = None, window: int | None = None,
    soft_cap: float | None = None, num_splits: int | None = None, tile: Sequence[int] | None = None,
) -> Call:  # fmt: skip
    k_cache, k_scale = tensors.cache(num_seqs * max_len, num_kv_heads, head_dim, cache or dtype)
    v_cache, v_scale = tensors.cache(num_seqs * max_len, num_kv_heads, head_dim, cache or dtype)
    return partial(
        paged_decode,
        tensors.numbers(dtype, num_seqs, num_heads, head_dim), k_cache, v_cache,
        tensors.block_table(num_seqs, max_len // BLOCK_SIZE), tensors.filled("int32", max_len, num_seqs),
        head_dim**-0.5, window=window, soft_cap=soft_cap, k_scale=k_scale, v_scale=v_scale,
        num_splits=num_splits, tile=None if tile is None else AttentionTile(*tile),
    )  # fmt: skip


def attention_prefill(
    tensors: BenchTensors, arch: str, *, num_seqs: int, num_tokens: int, num_heads: int, num_kv_heads: int,
    head_dim: int, max_len: int, dtype: str = "float16", cache: str | None = None,
    window: int | None = None, soft_cap: float | None = None, tile: Sequence[int] | None = None,
) -> Call:  # fmt: skip
    """`num_tokens` in all, the last ones of each sequence."""
    k_cache, k_scale = tensors.cache(num_seqs * max_len, num_kv_heads, head_dim, cache or dtype)
    v_cache, v_scale = tensors.cache(num_seqs * max_len, num_kv_heads, head_dim, cache or dtype)
    queries = num_tokens // num_seqs
    return partial(
        paged_prefill,
        tensors.numbers(dtype, num_tokens, num_heads, head_dim), k_cache, v_cache,
        tensors.block_table(num_seqs, max_len // BLOCK_SIZE), tensors.borders(num_seqs, queries),
        tensors.filled("int32", max_len, num_seqs), head_dim**-0.5, max_query_len=queries,
        window=window, soft_cap=soft_cap, k_scale=k_scale, v_scale=v_scale,
        tile=_tile(tile, forward_tile, head_dim, dtype, arch),
    )  # fmt: skip


def attention_flash(
    tensors: BenchTensors, arch: str, *, num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int,
    is_causal: bool = True, is_backward: bool = False, dtype: str = "float16",
    tile: Sequence[int] | None = None,
) -> Call:  # fmt: skip
    """Forward or backward alone: the backward pass is given what the forward one would give."""
    q, out, d_out = (tensors.numbers(dtype, 1, num_heads, num_tokens, head_dim) for _ in range(3))
    k, v = (tensors.numbers(dtype, 1, num_kv_heads, num_tokens, head_dim) for _ in range(2))
    scale = head_dim**-0.5
    choose = backward_tile if is_backward else forward_tile
    cut = _tile(tile, choose, head_dim, dtype, arch)
    if is_backward:
        sums = tensors.numbers("float32", 1, num_heads, num_tokens)
        return partial(flash_backward, d_out, q, k, v, out, sums, scale, causal=is_causal, tile=cut)
    return partial(flash_forward, q, k, v, scale, causal=is_causal, tile=cut)


def kv_write(
    tensors: BenchTensors, arch: str, *, num_tokens: int, num_kv_heads: int, head_dim: int,
    dtype: str = "float16", cache: str | None = None,
) -> Call:  # fmt: skip
    key, value = (tensors.numbers(dtype, num_tokens, num_kv_heads, head_dim) for _ in range(2))
    k_cache, k_scale = tensors.cache(num_tokens, num_kv_heads, head_dim, cache or dtype)
    v_cache, v_scale = tensors.cache(num_tokens, num_kv_heads, head_dim, cache or dtype)
    slots = tensors.shuffled(BLOCK_SIZE, num_tokens)
    return partial(write, key, value, k_cache, v_cache, slots, k_scale, v_scale)


def matmul_quant(
    tensors: BenchTensors, arch: str, *, num_rows: int, num_outputs: int, num_columns: int, num_bits: int,
    group_size: int | None = None, has_offsets: bool = False, dtype: str = "float16",
    num_splits: int | None = None, tile: Sequence[int] | None = None,
) -> Call:  # fmt: skip
    return partial(
        multiply,
        tensors.numbers(dtype, num_rows, num_columns),
        tensors.quantized(num_outputs, num_columns, num_bits, group_size, has_offsets),
        num_splits=num_splits,
        tile=None if tile is None else MatmulTile(*tile),
    )


def matmul_w8a8(
    tensors: BenchTensors, arch: str, *, num_rows: int, num_outputs: int, num_columns: int,
    dtype: str = "float16", tile: Sequence[int] | None = None,
) -> Call:  # fmt: skip
    return partial(
        multiply_codes,
        tensors.numbers(dtype, num_rows, num_columns),
        tensors.quantized(num_outputs, num_columns, 8, None, has_offsets=False),
        tile=None if tile is None else MatmulTile(*tile),
    )


def rms_norm(
    tensors: BenchTensors, arch: str, *, num_tokens: int, hidden: int, dtype: str = "float16",
    has_residual: bool = False,
) -> Call:  # fmt: skip
    x, weight = tensors.numbers(dtype, num_tokens, hidden), tensors.numbers(dtype, hidden)
    if has_residual:
        return partial(add_rms_norm, x, tensors.numbers(dtype, num_tokens, hidden), weight, 1e-5)
    return partial(norm, x, weight, 1e-5)


def rope(
    tensors: BenchTensors, arch: str, *, num_tokens: int, num_heads: int, head_dim: int,
    dtype: str = "float16",
) -> Call:  # fmt: skip
    cos, sin = (tensors.numbers("float32", num_tokens, head_dim // 2) for _ in range(2))
    x = tensors.numbers(dtype, num_tokens, num_heads, head_dim)
    return partial(rotate, x, cos, sin, tensors.shuffled(0, num_tokens))


def sample(
    tensors: BenchTensors, arch: str, *, num_rows: int, vocab_size: int, is_edited: bool = False
) -> Call:
    """Rows with nucleus sampling; edited ones with all penalties."""
    logits = tensors.numbers("float32", num_rows, vocab_size)
    numbers = [tensors.filled("float64", 1.0, num_rows) for _ in range(3)]
    temperature, top_p, one = numbers[0], numbers[1] * 0.9, numbers[2]
    zeros = [tensors.filled("int32", 0, num_rows) for _ in range(3)]
    seed = tensors.filled("int64", 1, num_rows)
    sampling = RowSampling(temperature, zeros[0], top_p, one * 0.0, seed, zeros[1], zeros[2])
    if not is_edited:
        return partial(draw, logits, sampling)
    edits = LogitEdits(
        bias_begins=tensors.filled("int32", 0, num_rows + 1),
        bias_token_ids=tensors.filled("int32", 0, 1),
        biases=tensors.filled("float64", 0.0, 1),
        repetition=one * 1.1,
        presence=one * 0.1,
        frequency=one * 0.1,
        output_counts=tensors.filled("int32", 0, num_rows * vocab_size).view(num_rows, vocab_size),
        is_in_prompt=tensors.filled("bool", 0, num_rows * vocab_size).view(num_rows, vocab_size),
    )
    return partial(draw, logits, sampling, edits)


def silu_mul(
    tensors: BenchTensors, arch: str, *, num_tokens: int, inner: int, dtype: str = "float16"
) -> Call:
    return partial(gate, tensors.numbers(dtype, num_tokens, 2 * inner))


CALLS: dict[str, Callable[..., Call]] = {
    function.__name__: function
    for function in (
        attention_decode,
        attention_prefill,
        attention_flash,
        kv_write,
        matmul_quant,
        matmul_w8a8,
        rms_norm,
        rope,
        sample,
        silu_mul,
    )
}
"""Op → a function of the tensors, the architecture (tiles are chosen by it where none is given, for there may
be no device to read it from) and the shape."""


def _tile(
    given: Sequence[int] | None, choose: Callable[[int, torch.dtype, int], AttentionTile],
    head_dim: int, dtype: str, arch: str,
) -> AttentionTile:  # fmt: skip
    if given is not None:
        return AttentionTile(*given)
    named: torch.dtype = getattr(torch, dtype)
    return choose(head_dim, named, arch_number(arch) // 10)
