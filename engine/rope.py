"""Tables of the rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import RopeConfig


def rope_tables(
    config: RopeConfig, head_dim: int, max_len: int, *, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin of each position's angles, times the attention factor: each [max_len, head_dim / 2].

    Computed in float64, then rounded once. Raises ValueError for a scaling without its divisors.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = config.theta**-exponents
    if config.scaling != "none":
        if len(config.divisors) != len(frequencies):
            raise ValueError(
                f"RoPE scaling {config.scaling!r}: {len(config.divisors)} divisors, {head_dim // 2} pairs"
            )
        frequencies = frequencies / torch.tensor(config.divisors, dtype=torch.float64)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float64), frequencies)
    factor = config.attention_factor
    return (angles.cos() * factor).to(device, dtype), (angles.sin() * factor).to(device, dtype)
