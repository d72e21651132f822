"""RoPE as a GGUF file states it: metadata in llama.cpp's terms, or one divisor for each pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.config import RopeConfig
from engine.loading.errors import ModelError
from engine.loading.gguf_file import GgufFile
from engine.loading.gguf_metadata import REMEDY, Metadata
from engine.loading.rope_recipe import LEAST, MOST, read_rope

DIVISORS = "rope_freqs.weight"
"""The tensor that holds Llama 3's scaling, worked out by the converter."""

_NEUTRAL = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0}
"""Keys that llama.cpp's versions read differently: only the value that changes nothing is taken."""


def gguf_rope(
    file: GgufFile, metadata: Metadata, *, head_dim: int, default_theta: float | None
) -> tuple[RopeConfig, int]:
    """As `read_rope`: the configuration and the trained context."""
    rotated = metadata.positive_int("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelError(f"RoPE over {rotated} of {head_dim} dimensions is not supported", REMEDY)
    rope, trained = read_rope(
        _parameters(metadata),
        head_dim=head_dim,
        max_position_embeddings=metadata.positive_int("context_length"),
        default_theta=default_theta,
    )
    if DIVISORS in file.tensors:
        rope = _with_divisors(rope, file, head_dim)
    # Beside the type's own, and for every type, as in llama.cpp.
    attention_factor = rope.attention_factor * metadata.positive_float("rope.scaling.attn_factor", 1.0)
    if not LEAST <= attention_factor <= MOST:
        raise ModelError(f"RoPE attention factor {attention_factor:g} is not from {LEAST} to {MOST}", REMEDY)
    return replace(rope, attention_factor=attention_factor), trained


def _parameters(metadata: Metadata) -> dict[str, Any]:
    """What the file states, under the names of `config.json`."""
    for key, neutral in _NEUTRAL.items():
        value = metadata.number(f"rope.scaling.{key}")
        if value not in (None, neutral):
            raise ModelError(f"GGUF metadata rope.scaling.{key} {value} is not supported", REMEDY)
    factor = _factor(metadata)
    # A factor without a type means linear, as in llama.cpp.
    kind = metadata.text("rope.scaling.type") or ("none" if factor is None else "linear")
    stated = {
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": metadata.number("rope.freq_base"),
        "factor": None if kind == "none" else factor,
        "original_max_position_embeddings": metadata.number("rope.scaling.original_context_length"),
        "beta_fast": metadata.number("rope.scaling.yarn_beta_fast"),
        "beta_slow": metadata.number("rope.scaling.yarn_beta_slow"),
    }
    return {key: value for key, value in stated.items() if value is not None}


def _factor(metadata: Metadata) -> float | None:
    factor, in_older_files = metadata.number("rope.scaling.factor"), metadata.number("rope.scale_linear")
    if factor is None or in_older_files is None:
        return in_older_files if factor is None else factor
    if factor != in_older_files:
        raise ModelError(
            f"GGUF metadata rope.scaling.factor {factor} and rope.scale_linear {in_older_files} "
            "contradict each other",
            REMEDY,
        )
    return factor


def _with_divisors(rope: RopeConfig, file: GgufFile, head_dim: int) -> RopeConfig:
    if rope.scaling != "none":
        raise ModelError(f"RoPE scaling {rope.scaling!r} stands beside a tensor {DIVISORS!r}", REMEDY)
    shape = file.tensors[DIVISORS].shape
    if shape != (head_dim // 2,):
        raise ModelError(f"tensor {DIVISORS!r} has shape {shape}, expected {(head_dim // 2,)}", REMEDY)
    divisors = file.tensor(DIVISORS)
    if not ((divisors >= LEAST) & (divisors <= MOST)).all():
        raise ModelError(f"tensor {DIVISORS!r} holds numbers that are not from {LEAST} to {MOST}", REMEDY)
    return RopeConfig(rope.theta, "llama3", float(divisors.max()), tuple(divisors.tolist()))
