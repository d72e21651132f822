"""Angles of the rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import RopeConfig


def rope_tables(
    config: RopeConfig, head_dim: int, max_len: int, *, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin of position · theta^(-2i / head_dim), each [max_len, head_dim / 2].

    Computed in float64, then rounded once. Raises ValueError for a scaling that is not built.
    """
    if config.scaling != "none":
        raise ValueError(f"RoPE scaling {config.scaling!r} is not supported")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.outer(torch.arange(max_len, dtype=torch.float64), config.theta**-exponents)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
