"""From what a file states about RoPE to a divisor for each pair, and to the context that was trained.

The recipes are those of transformers (`modeling_rope_utils.py`): linear interpolation, Llama 3's bands
and YaRN (Peng et al., 2023). Parameters have their names in `config.json`; GGUF's are translated.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, log, pi
from typing import Annotated, Any

import msgspec

from engine.config import RopeConfig
from engine.loading.errors import ModelError, shown

MAX_HEAD_DIM = 1024
_MAX_CONTEXT = 2**31
_SUPPORTED = ("default", "linear", "llama3", "yarn")
_CALLED = {"type": "rope_type"}
_REMEDY = "give a model whose RoPE parameters are complete"

LEAST, MOST = 1e-6, 1e9
"""Far beyond whatever a model states; between them no recipe overflows."""

_Positive = Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
_Size = Annotated[int, msgspec.Meta(gt=0, lt=_MAX_CONTEXT)]


class _Stated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing unknown is passed over: a parameter that is not obeyed degrades the answers silently."""

    rope_theta: Annotated[float, msgspec.Meta(gt=1, lt=1e15)] | None = None
    rope_type: str | None = None
    factor: Annotated[float, msgspec.Meta(ge=1, lt=1e6)] | None = None
    original_max_position_embeddings: _Size | None = None
    low_freq_factor: _Positive | None = None
    high_freq_factor: _Positive | None = None
    attention_factor: _Positive | None = None
    beta_fast: _Positive | None = None
    beta_slow: _Positive | None = None
    mscale: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] | None = None
    mscale_all_dim: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] | None = None
    truncate: bool = True
    partial_rotary_factor: Annotated[float, msgspec.Meta(ge=1, le=1)] = 1.0
    finetuned: bool | None = None


def agreed_parameters(places: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the places of one file state together. A place is named by what stands in front of its fields.

    Older files say `type` for `rope_type`, some say both; null states nothing.
    Raises ModelError, naming both fields and values, for two that contradict each other.
    """
    agreed: dict[str, tuple[str, Any]] = {}
    for place, parameters in places.items():
        for name, value in parameters.items():
            if value is None:
                continue
            field, known = agreed.setdefault(_CALLED.get(name, name), (place + name, value))
            if value is not known and value != known:
                raise ModelError(
                    f"RoPE {field} {shown(known)} and {place}{name} {shown(value)} contradict each other",
                    "take out the one that the model was not trained with",
                )
    return {name: value for name, (_, value) in agreed.items()}


def read_rope(
    parameters: Mapping[str, Any], *, head_dim: int, max_position_embeddings: int, default_theta: float | None
) -> tuple[RopeConfig, int]:
    """The configuration and the trained context in tokens.

    Linear scaling and YaRN were trained for the original context × factor where the file states the
    original; else, as for Llama 3, `max_position_embeddings` is what was trained.
    Raises ModelError, naming type or parameter, for what is unknown, missing or out of range.
    """
    kind = parameters.get("rope_type") or "default"
    if kind not in _SUPPORTED:
        numbers = ", ".join(
            f"{key} {shown(value)}" for key, value in parameters.items() if key != "rope_type"
        )
        raise ModelError(
            f"RoPE scaling {shown(kind)} ({numbers[:200]}) is not supported",
            f"supported: {', '.join(_SUPPORTED)}",
        )
    stated = _checked(parameters)
    theta = stated.rope_theta or default_theta
    if theta is None:
        raise ModelError(
            "the RoPE base (rope_theta) is not stated, and models of this architecture differ in it", _REMEDY
        )
    frequencies = pair_frequencies(theta, head_dim)
    if kind == "default":
        if stated.factor not in (None, 1.0):
            raise ModelError(f"RoPE factor {stated.factor} is stated without a scaling that uses it", _REMEDY)
        return RopeConfig(theta), max_position_embeddings
    factor: float = _needed(stated, kind, "factor")
    if kind == "linear":
        rope = RopeConfig(theta, "linear", factor, (factor,) * len(frequencies))
        original = stated.original_max_position_embeddings
        return rope, max_position_embeddings if original is None else _stretched(original, factor)
    if kind == "llama3":
        return RopeConfig(theta, "llama3", factor, _llama3(stated, frequencies)), max_position_embeddings
    rope = RopeConfig(theta, "yarn", factor, _yarn(stated, theta, head_dim), _yarn_attention(stated, factor))
    return rope, _stretched(_needed(stated, kind, "original_max_position_embeddings"), factor)


def pair_frequencies(theta: float, head_dim: int) -> list[float]:
    """Radians a token for each pair. Raises ModelError for a head that cannot be cut into pairs."""
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise ModelError(
            f"a head has {head_dim} dimensions; RoPE here takes even numbers from 2 to {MAX_HEAD_DIM}",
            _REMEDY,
        )
    return [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]


def _checked(parameters: Mapping[str, Any]) -> _Stated:
    try:
        return msgspec.convert(dict(parameters), _Stated)
    except msgspec.ValidationError as error:
        raise ModelError(f"RoPE parameters: {error}", _REMEDY) from None


def _needed(stated: _Stated, kind: str, name: str) -> Any:
    value = getattr(stated, name)
    if value is None:
        raise ModelError(f"RoPE scaling {kind!r} does not state its {name}", _REMEDY)
    return value


def _stretched(original: int, factor: float) -> int:
    return min(int(original * factor), _MAX_CONTEXT - 1)


def _llama3(stated: _Stated, frequencies: list[float]) -> tuple[float, ...]:
    """Long waves are stretched by the whole factor, short ones not at all, those between in part."""
    factor: float = _needed(stated, "llama3", "factor")
    low: float = _needed(stated, "llama3", "low_freq_factor")
    high: float = _needed(stated, "llama3", "high_freq_factor")
    original: int = _needed(stated, "llama3", "original_max_position_embeddings")
    if high <= low:
        raise ModelError(f"RoPE high_freq_factor {high} is not above low_freq_factor {low}", _REMEDY)
    divisors = []
    for frequency in frequencies:
        waves = original * frequency / (2 * pi)  # that fit into the original context
        kept = min(max((waves - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - kept) / factor + kept))
    return tuple(divisors)


def _yarn(stated: _Stated, theta: float, head_dim: int) -> tuple[float, ...]:
    """A ramp over the pairs, from those that turn `beta_fast` times in the original context (kept) to
    those that turn `beta_slow` times (stretched by the whole factor)."""
    factor: float = _needed(stated, "yarn", "factor")
    original: int = _needed(stated, "yarn", "original_max_position_embeddings")
    beta_fast, beta_slow = stated.beta_fast or 32.0, stated.beta_slow or 1.0
    if beta_fast < beta_slow:
        raise ModelError(f"RoPE beta_fast {beta_fast} is below beta_slow {beta_slow}", _REMEDY)

    def pair_that_turns(times: float) -> float:
        return head_dim * log(original / (times * 2 * pi)) / (2 * log(theta))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if stated.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    divisors = []
    for pair in range(head_dim // 2):
        ramp = min(max((pair - low) / width, 0.0), 1.0)
        divisors.append(1 / (ramp / factor + 1 - ramp))
    return tuple(divisors)


def _yarn_attention(stated: _Stated, factor: float) -> float:
    def growth(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * log(factor) + 1.0

    if stated.attention_factor is not None:
        return stated.attention_factor
    if stated.mscale and stated.mscale_all_dim:
        return growth(stated.mscale) / growth(stated.mscale_all_dim)
    return growth(1.0)
