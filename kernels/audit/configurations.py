"""The configurations that the audit compiles: shapes of models that are served, and the odd ones.

Heads of 128 in groups of 4 are Llama 3's and Mistral's, 64 in groups of 3 SmolLM2's, 256 Gemma's; 80 and
96 are those that are no power of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernels.audit.configuration import Configuration, Expected

KERNELS = {
    "_attend": Expected(streams=("k_ptr", "v_ptr"), has_products=True),
    "_combine": Expected(streams=("partial_ptr",), least_load_bits=64),
    "_prefill": Expected(streams=("k_cache", "v_cache"), has_products=True),
    "_forward_kernel": Expected(streams=("k", "v"), has_products=True),
    "_key_gradients_kernel": Expected(streams=("q", "d_out"), has_products=True),
    "_query_gradients_kernel": Expected(streams=("k", "v"), has_products=True),
    "_list_kernel": Expected(streams=("logits",)),
    "_draw_kernel": Expected(streams=("logits",)),
}
"""What holds for a kernel everywhere; those that are not here have no loop over a stream."""

LLAMA = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
SMOLLM = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64}
GEMMA = {"num_heads": 16, "num_kv_heads": 8, "head_dim": 256}
ODD_80 = {"num_heads": 32, "num_kv_heads": 32, "head_dim": 80}
ODD_96 = {"num_heads": 24, "num_kv_heads": 8, "head_dim": 96}
MODELS = {"llama": LLAMA, "smollm": SMOLLM, "gemma": GEMMA, "odd 80": ODD_80, "odd 96": ODD_96}
OPS = (
    "kv_write",
    "rms_norm",
    "rope",
    "silu_mul",
    "attention_decode",
    "attention_prefill",
    "attention_flash",
    "sample",
)
QUANTISED = ("int8", "float8_e4m3fn")


def configurations(ops: Sequence[str] = (), *, is_quick: bool = False) -> list[Configuration]:
    """All, or those of some ops, or the quick ones among them."""
    found = [*_decode(), *_prefill(), *_flash(), *_small()]
    return [c for c in found if (not ops or c.op in ops) and (c.is_quick or not is_quick)]


def _decode() -> Iterator[Configuration]:
    few = {"num_seqs": 1, "max_len": 32768}
    many = {"num_seqs": 256, "max_len": 4096}
    yield _one("attention_decode", "llama float16 one long", LLAMA | few, is_quick=True)
    yield _one("attention_decode", "llama float16 many", LLAMA | many)
    yield _one("attention_decode", "llama bfloat16 many", LLAMA | many | {"dtype": "bfloat16"}, is_quick=True)
    for name in ("smollm", "gemma", "odd 80", "odd 96"):
        yield _one("attention_decode", f"{name} bfloat16 many", MODELS[name] | many | {"dtype": "bfloat16"})
    for cache in QUANTISED:
        for dtype in ("float16", "bfloat16"):
            yield _quantised("attention_decode", f"llama {dtype}", LLAMA | many | {"dtype": dtype}, cache)
    yield _one("attention_decode", "gemma window and cap", GEMMA | many | {"window": 1024, "soft_cap": 50.0})
    yield _float32("attention_decode", "smollm float32", SMOLLM | many)


def _prefill() -> Iterator[Configuration]:
    chunk = {"num_seqs": 8, "num_tokens": 2048, "max_len": 8192}
    for name, model in MODELS.items():
        arguments = model | chunk | {"dtype": "bfloat16"}
        yield _one("attention_prefill", f"{name} bfloat16", arguments, is_quick=name == "llama")
    yield _one("attention_prefill", "llama float16", LLAMA | chunk)
    for cache in QUANTISED:
        yield _quantised("attention_prefill", "llama bfloat16", LLAMA | chunk | {"dtype": "bfloat16"}, cache)
    yield _one(
        "attention_prefill", "gemma window and cap", GEMMA | chunk | {"window": 1024, "soft_cap": 50.0}
    )
    yield _float32("attention_prefill", "smollm float32", SMOLLM | chunk)


def _flash() -> Iterator[Configuration]:
    for name, model in MODELS.items():
        for is_backward in (False, True):
            arguments = model | {"num_tokens": 4096, "is_backward": is_backward, "dtype": "bfloat16"}
            way = "backward" if is_backward else "forward"
            yield _one("attention_flash", f"{name} bfloat16 {way}", arguments, is_quick=name == "llama")
    yield _one("attention_flash", "llama not causal", LLAMA | {"num_tokens": 4096, "is_causal": False})


def _small() -> Iterator[Configuration]:
    tokens = {"num_tokens": 2048, "num_kv_heads": 8, "head_dim": 128}
    yield _one("kv_write", "float16", tokens, is_quick=True)
    yield _one("kv_write", "bfloat16 into int8", tokens | {"dtype": "bfloat16", "cache": "int8"})
    yield _quantised("kv_write", "bfloat16", tokens | {"dtype": "bfloat16"}, "float8_e4m3fn")
    for hidden in (576, 4096):
        arguments = {"num_tokens": 2048, "hidden": hidden, "has_residual": True}
        yield _one("rms_norm", f"float16 {hidden}", arguments, is_quick=hidden == 4096)
    yield _one("rope", "float16", {"num_tokens": 2048, "num_heads": 32, "head_dim": 128}, is_quick=True)
    rows = {"num_rows": 64, "vocab_size": 128256}
    yield _one("sample", "64 rows of 128 K", rows, is_quick=True)
    yield _one("sample", "64 rows of 128 K with penalties", rows | {"is_edited": True})
    yield _one("silu_mul", "float16", {"num_tokens": 2048, "inner": 14336}, is_quick=True)


def _one(op: str, name: str, arguments: dict[str, Any], *, is_quick: bool = False) -> Configuration:
    return Configuration(op, name, arguments, is_quick=is_quick)


def _float32(op: str, name: str, arguments: dict[str, Any]) -> Configuration:
    """Triton swizzles nothing for products by single threads, which read 8 rows of keys at one column."""
    return Configuration(op, name, arguments | {"dtype": "float32"}, max_conflict_degree=8)


def _quantised(op: str, name: str, arguments: dict[str, Any], cache: str) -> Configuration:
    """fp8 in a cache is for GPUs that can convert to it.

    Prefill puts widened tiles into shared memory anew, each thread 32 bytes side by side: two turns.
    """
    return Configuration(
        op,
        f"{name}, cache {cache}",
        arguments | {"cache": cache},
        max_conflict_degree=2 if op == "attention_prefill" else 1,
        least_arch="sm_89" if cache == "float8_e4m3fn" else "sm_80",
    )
