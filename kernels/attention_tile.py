"""How attention of many queries is cut into programs and turns.

Chosen from what the compiler makes of the kernels for sm_80, sm_90 and sm_100: large tiles that spill no
register and fit into shared memory. Not chosen by speed: they have not been run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class AttentionTile:
    num_rows: int
    """Queries of a program; where the heads of a group share a tile, queries x heads."""
    num_keys: int
    """Keys of a turn."""
    num_warps: int
    num_stages: int


def forward_tile(head_dim: int, dtype: torch.dtype, generation: int) -> AttentionTile:
    if dtype == torch.float32:
        return _float32_tile(head_dim)
    if generation in (9, 10):  # products from shared memory: rows and sums have the registers to themselves
        return AttentionTile(128, 64 if head_dim <= 128 else 32, 8, 3)
    if head_dim <= 64:
        return AttentionTile(128, 64, 8, 2)
    return AttentionTile(128, 32, 8, 2) if head_dim <= 128 else AttentionTile(64, 32, 8, 2)


def backward_tile(head_dim: int, dtype: torch.dtype, generation: int) -> AttentionTile:
    if dtype == torch.float32:
        return _float32_tile(head_dim)
    if head_dim <= 128:
        return AttentionTile(64, 64, 8, 2)
    return AttentionTile(64 if generation in (9, 10) else 32, 32, 8, 2)


@cache
def generation(device: torch.device) -> int:
    """8 for sm_8x, 9 for sm_90, …; without a GPU 8."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 8


def _float32_tile(head_dim: int) -> AttentionTile:
    """Without tensor cores the operands of a product are registers, too."""
    return AttentionTile(16, 16, 4 if head_dim <= 64 else 8, 1)
