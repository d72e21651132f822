"""The configurations that the audit compiles: shapes of models that are served, and the odd ones.

Heads of 128 in groups of 4 are Llama 3's and Mistral's, 64 in groups of 3 SmolLM2's, 256 Gemma's; 80 and
96 are those that are no power of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernels.audit.configuration import Configuration, Expected
from kernels.roofline import QUANTISED

KERNELS = {
    "_attend": Expected(streams=("k_ptr", "v_ptr"), has_products=True),
    "_combine": Expected(streams=("partial_ptr",), least_load_bits=64),
    "_prefill": Expected(streams=("k_cache", "v_cache"), has_products=True),
    "_forward_kernel": Expected(streams=("k", "v"), has_products=True),
    "_key_gradients_kernel": Expected(streams=("q", "d_out"), has_products=True),
    "_query_gradients_kernel": Expected(streams=("k", "v"), has_products=True),
    "_multiply": Expected(streams=("values_ptr",), has_products=True),
    "_multiply_codes": Expected(streams=("codes_ptr", "values_ptr"), has_products=True),
    "_list_kernel": Expected(streams=("logits",)),
    "_draw_kernel": Expected(streams=("logits",)),
}
"""What holds for a kernel everywhere; those that are not here have no loop over a stream."""

LLAMA = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
SMOLLM = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64}
GEMMA = {"num_heads": 16, "num_kv_heads": 8, "head_dim": 256}
ODD_80 = {"num_heads": 32, "num_kv_heads": 32, "head_dim": 80}
ODD_96 = {"num_heads": 24, "num_kv_heads": 8, "head_dim": 96}
LINEARS = {
    "llama down": {"num_outputs": 4096, "num_columns": 14336},
    "llama up": {"num_outputs": 14336, "num_columns": 4096},
    "smollm down": {"num_outputs": 576, "num_columns": 1536},
    "smollm up": {"num_outputs": 1536, "num_columns": 576},
}
"""Matrices of models' MLPs."""
FORMATS: dict[str, dict[str, Any]] = {
    "W8": {"num_bits": 8},
    "W8 group 32": {"num_bits": 8, "group_size": 32},
    "W4 group 64": {"num_bits": 4, "group_size": 64, "has_offsets": True},
    "W4 group 32": {"num_bits": 4, "group_size": 32},
}
"""What `quantize_int8` and `quantize_int4` make, GGUF's Q8_0 and Q4_0 between."""
MODELS = {"llama": LLAMA, "smollm": SMOLLM, "gemma": GEMMA, "odd 80": ODD_80, "odd 96": ODD_96}
OPS = (
    "kv_write",
    "rms_norm",
    "rope",
    "silu_mul",
    "attention_decode",
    "attention_prefill",
    "attention_flash",
    "matmul_quant",
    "matmul_w8a8",
    "sample",
)


def configurations(ops: Sequence[str] = (), *, is_quick: bool = False) -> list[Configuration]:
    """All, or those of some ops, or the quick ones among them."""
    found = [*_decode(), *_prefill(), *_flash(), *_matmul(), *_small()]
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


def _matmul() -> Iterator[Configuration]:
    for name, linear in LINEARS.items():
        for kind in ("W8", "W4 group 64"):
            yield _linear(name, kind, linear, 1, is_quick=(name, kind) == ("llama down", "W4 group 64"))
    for kind in ("W8 group 32", "W4 group 32"):
        yield _linear("llama down", kind, LINEARS["llama down"], 1)
    for num_rows in (16, 64, 2048):
        for kind in ("W8", "W4 group 64", "W4 group 32"):
            yield _linear("llama down", kind, LINEARS["llama down"], num_rows)
    yield _linear("smollm up", "W4 group 64", LINEARS["smollm up"], 64)
    yield _linear("llama down", "W4 group 64", LINEARS["llama down"], 1, dtype="float16")
    yield _float32(
        "matmul_quant", "smollm up W8 float32, 1 row", LINEARS["smollm up"] | {"num_rows": 1, **FORMATS["W8"]}
    )
    for num_rows in (64, 2048):
        for name in ("llama down", "smollm up"):
            arguments = LINEARS[name] | {"num_rows": num_rows, "dtype": "bfloat16"}
            is_quick = (num_rows, name) == (2048, "llama down")
            yield _one("matmul_w8a8", f"{name} bfloat16, {num_rows} rows", arguments, is_quick=is_quick)


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


def _linear(
    name: str,
    kind: str,
    linear: dict[str, int],
    num_rows: int,
    *,
    dtype: str = "bfloat16",
    is_quick: bool = False,
) -> Configuration:
    """Few rows: activations are read from shared memory in two turns, which are an eighth of what is read.
    Many rows: sm_90's products take weights from registers, whose layout is one of two neighbours a thread:
    copied by 64 bits, read in two turns; for sm_100's they are put into shared memory anew, in four."""
    is_few = num_rows <= 16
    return Configuration(
        "matmul_quant",
        f"{name} {kind} {dtype}, {num_rows} rows",
        {**linear, **FORMATS[kind], "num_rows": num_rows, "dtype": dtype},
        max_conflict_degree=2 if is_few else 4,
        least_load_bits=128 if is_few else 64,
        is_quick=is_quick,
    )


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
