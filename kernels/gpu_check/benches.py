"""What is timed, at which shapes, and what is required of it. Shapes are those of Llama 3 8B."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F

from kernels.audit.bench_tensors import BenchTensors
from kernels.audit.calls import Call
from kernels.gpu_check.bench import Bench, Race
from kernels.matmul_quant import matmul_quant
from kernels.matmul_w8a8 import matmul_w8a8
from kernels.quant_layout import quantize_int4, quantize_int8

DECODE_SHARE = 0.85
"""Of copy bandwidth."""
DENSE_PREFILL_SHARE = 0.60
"""Of the matmul rate, a causal mask's half of the products counted."""
PAGED_PREFILL_SHARE = 0.45
W4A16_SPEED = 3.0
"""Times as fast as a bfloat16 matmul, for one token."""

Heads = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shapes:
    heads: Heads
    num_seqs: int
    max_len: int
    """Of decodes, each."""
    num_tokens: int
    """Of a prefill."""
    context: int
    """Behind which a chunk stands, itself included."""
    hidden: int
    inner: int
    vocab_size: int
    copied_numbers: int
    matmul_size: int
    dtype: str = "bfloat16"


FULL = Shapes(
    heads={"num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    num_seqs=64,
    max_len=4096,
    num_tokens=8192,
    context=16384,
    hidden=4096,
    inner=14336,
    vocab_size=128256,
    copied_numbers=1 << 29,
    matmul_size=8192,
)
TINY = Shapes(
    heads={"num_heads": 4, "num_kv_heads": 2, "head_dim": 16},
    num_seqs=2,
    max_len=32,
    num_tokens=16,
    context=32,
    hidden=64,
    inner=64,
    vocab_size=50,
    copied_numbers=64,
    matmul_size=16,
    dtype="float32",
)
"""To run every line once, not to measure."""


def benches(shapes: Shapes) -> Iterator[Bench]:
    yield from _attention(shapes)
    yield from _small(shapes)


def _attention(shapes: Shapes) -> Iterator[Bench]:
    heads = shapes.heads | {"dtype": shapes.dtype}
    batch = heads | {"num_seqs": shapes.num_seqs, "max_len": shapes.max_len}
    yield Bench(
        "attention_decode",
        "batch",
        batch,
        required=DECODE_SHARE,
        rival=lambda tensors: _dense_decode(tensors, shapes),
        rival_name="SDPA on dense K and V",
    )
    yield Bench("attention_decode", "batch, int8 cache", batch | {"cache": "int8"})
    yield Bench(
        "attention_decode", "one long", heads | {"num_seqs": 1, "max_len": shapes.num_seqs * shapes.max_len}
    )
    dense = heads | {"num_tokens": shapes.num_tokens}
    yield Bench(
        "attention_flash",
        "causal",
        dense,
        is_of_products=True,
        required=DENSE_PREFILL_SHARE,
        rival=lambda tensors: _dense_prefill(tensors, shapes),
        rival_name="SDPA",
    )
    yield Bench("attention_flash", "backward", dense | {"is_backward": True}, is_of_products=True)
    chunks = dense | {"num_seqs": 2, "max_len": shapes.context}
    yield Bench(
        "attention_prefill",
        "two chunks",
        chunks,
        is_of_products=True,
        required=PAGED_PREFILL_SHARE,
    )
    yield Bench(
        "attention_prefill", "two chunks, int8 cache", chunks | {"cache": "int8"}, is_of_products=True
    )


def _small(shapes: Shapes) -> Iterator[Bench]:
    rows = {"num_tokens": shapes.num_tokens, "dtype": shapes.dtype}
    num_kv_heads, head_dim = shapes.heads["num_kv_heads"], shapes.heads["head_dim"]
    num_heads = shapes.heads["num_heads"] + num_kv_heads
    kv = rows | {"num_kv_heads": num_kv_heads, "head_dim": head_dim}
    yield Bench("kv_write", "as it is", kv)
    yield Bench("kv_write", "int8", kv | {"cache": "int8"})
    yield Bench("rms_norm", "alone", rows | {"hidden": shapes.hidden})
    yield Bench("rms_norm", "with residual", rows | {"hidden": shapes.hidden, "has_residual": True})
    yield Bench("rope", "queries and keys", rows | {"num_heads": num_heads, "head_dim": head_dim})
    yield Bench("silu_mul", "gate and up", rows | {"inner": shapes.inner})
    drawn = {"num_rows": shapes.num_seqs, "vocab_size": shapes.vocab_size}
    yield Bench("sample", "top-p", drawn)
    yield Bench("sample", "penalties", drawn | {"is_edited": True})


def races(shapes: Shapes, tensors: BenchTensors) -> Iterator[Race]:
    """The widest projection, for one token: bound by the weight's bytes. And for a batch of decodes."""
    weight = tensors.numbers(shapes.dtype, shapes.inner, shapes.hidden)
    one, batch = (tensors.numbers(shapes.dtype, rows, shapes.hidden) for rows in (1, shapes.num_seqs))
    four, eight = quantize_int4(weight), quantize_int8(weight)
    by_torch = f"torch in {shapes.dtype}"
    for x, name, required in ((one, "one token", W4A16_SPEED), (batch, "batch", None)):
        dense = partial(F.linear, x, weight)
        yield Race(f"W4A16 {name}", partial(matmul_quant, x, four), dense, by_torch, required)
        yield Race(f"W8A16 {name}", partial(matmul_quant, x, eight), dense, by_torch)
        yield Race(f"W8A8 {name}", partial(matmul_w8a8, x, eight), dense, by_torch)


def _dense_decode(tensors: BenchTensors, shapes: Shapes) -> Call:
    return _sdpa(tensors, shapes, shapes.num_seqs, 1, shapes.max_len)


def _dense_prefill(tensors: BenchTensors, shapes: Shapes) -> Call:
    return _sdpa(tensors, shapes, 1, shapes.num_tokens, shapes.num_tokens)


def _sdpa(tensors: BenchTensors, shapes: Shapes, num_seqs: int, queries: int, keys: int) -> Call:
    """Causal if there are as many queries as keys."""
    num_heads, num_kv_heads, head_dim = (
        shapes.heads[name] for name in ("num_heads", "num_kv_heads", "head_dim")
    )
    query = tensors.numbers(shapes.dtype, num_seqs, num_heads, queries, head_dim)
    key, value = (tensors.numbers(shapes.dtype, num_seqs, num_kv_heads, keys, head_dim) for _ in range(2))
    return lambda: F.scaled_dot_product_attention(
        query, key, value, is_causal=queries == keys, enable_gqa=True
    )
