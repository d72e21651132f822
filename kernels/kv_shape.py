"""What attention needs to know of the cache besides its tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KvShape:
    """K and V of a layer are each `[num_blocks, num_kv_heads, block_size, head_dim]`."""

    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Of what attention computes with."""
    cache_dtype: torch.dtype
    """Of what is stored: written rounded, read widened."""

    @property
    def scale(self) -> float:
        """Of the scores: 1 / sqrt(head_dim)."""
        return float(self.head_dim**-0.5)
