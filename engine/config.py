"""What an engine is built from: frozen values, made once at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLOCK_SIZE = 16

RopeType = Literal["none", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: `theta` is the base, `scaling` the way it is stretched."""

    theta: float
    scaling: RopeType = "none"
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-family decoder, as its file states it. `max_model_len` is the trained context, in tokens."""

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
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


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
