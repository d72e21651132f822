"""What each family adds to the common decoder, and what its files call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Window = Literal["ignored", "stated", "switched"]
"""How `config.json` speaks of a sliding window: not at all; by its size; by its size and a switch."""


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str
    has_qkv_bias: bool = False
    has_query_key_norm: bool = False
    window: Window = "ignored"
    default_theta: float | None = None
    """RoPE base of a file that states none. None: such a file is refused, for its models differ."""
    is_interleaved_in_gguf: bool = False
    """GGUF keeps the rows of Q and K in the order of interleaved RoPE."""


# Files of the first Llamas state no base: it was not a setting yet.
_LLAMA = Architecture("llama", default_theta=10000.0, is_interleaved_in_gguf=True)
_MISTRAL = Architecture("mistral", window="stated")
_QWEN2 = Architecture("qwen2", has_qkv_bias=True, window="switched")
_QWEN3 = Architecture("qwen3", has_query_key_norm=True, window="switched")

HUGGING_FACE = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
}
GGUF = {"llama": _LLAMA, "qwen2": _QWEN2, "qwen3": _QWEN3}
"""Mistral and SmolLM are "llama" there."""
