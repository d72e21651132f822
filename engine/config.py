"""What an engine is built from: frozen values, made once at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLOCK_SIZE = 16

RopeType = Literal["none", "linear", "llama3", "yarn"]

BackendName = Literal["auto", "triton", "cpu", "reference"]
"""Whose kernels a model runs on (`engine/attention_backend.py`)."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: pair i at position p turns by p · theta^(-2i / head_dim) / divisors[i].

    `scaling` and `factor` name the recipe that the divisors came from (`engine/loading/rope_recipe.py`).
    """

    theta: float
    scaling: RopeType = "none"
    factor: float = 1.0
    divisors: tuple[float, ...] = ()
    """One for each of the head_dim / 2 pairs; empty without scaling."""
    attention_factor: float = 1.0
    """Cosine and sine are multiplied by it."""

    @property
    def identity(self) -> str:
        """Every field, so that two are equal exactly when their configs are."""
        recipe = f"{self.theta!r} {self.scaling} {self.factor!r}"
        if not self.divisors and self.attention_factor == 1.0:
            return recipe
        return f"{recipe} {self.attention_factor!r} {' '.join(map(repr, self.divisors))}"

    def __str__(self) -> str:
        stretch = "" if self.scaling == "none" else f" × {self.factor:g}"
        return f"RoPE base {self.theta:g}, scaling {self.scaling}{stretch}"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family, as its file states it."""

    model_id: str
    revision: str
    """Digest of the weights' identity: other weights, other revision, other block hashes."""
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_model_len: int
    """The context in tokens that base and scaling were trained for."""
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    has_qkv_bias: bool = False
    has_query_key_norm: bool = False
    sliding_window: int | None = None
    """How many tokens back some layer sees, itself included; None: all of them."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes that the scheduler works within.

    `num_blocks` includes the null block 0, which is never handed out. Raises ValueError, naming the
    field, for a size that nothing could be scheduled with.
    """

    num_blocks: int
    max_model_len: int
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    block_size: int = BLOCK_SIZE
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    """Share of the pool that admission leaves free, so that running requests can grow."""

    def __post_init__(self) -> None:
        if self.num_blocks < 2:
            raise ValueError(
                f"num_blocks must be at least 2 (block 0 is the null block), not {self.num_blocks}"
            )
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): every running request decodes in every step"
            )
