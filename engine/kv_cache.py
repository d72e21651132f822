"""The KV tensors of all layers. A slot is one token's place: block · block size + offset."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention_backend import KvShape


class KvCache:
    """Owns K and V of each layer, `[num_blocks, KVH, block_size, D]`; block 0 is the null block.

    Its memory is written at once, so that what does not fit fails here and not under load. It holds
    zeros, and zeros again after a fault: padding is read with weight 0, and 0 · NaN is NaN.
    """

    def __init__(self, num_layers: int, num_blocks: int, shape: KvShape, device: torch.device) -> None:
        sizes = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
        self.shape = shape
        self.layers: list[tuple[Tensor, Tensor]] = [
            (
                torch.empty(sizes, dtype=shape.cache_dtype, device=device),
                torch.empty(sizes, dtype=shape.cache_dtype, device=device),
            )
            for _ in range(num_layers)
        ]
        self.clear()

    def clear(self) -> None:
        for cache in self._tensors():
            cache.zero_()

    def clear_slots(self, slots: Tensor) -> None:
        """Zeros K and V of these slots [n] in all layers."""
        blocks, offsets = slots // self.shape.block_size, slots % self.shape.block_size
        for cache in self._tensors():
            cache[blocks, :, offsets] = 0

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """(source, destination) each; all sources are read before any destination is written."""
        if not copies:
            return
        sources, destinations = (list(blocks) for blocks in zip(*copies, strict=True))
        for cache in self._tensors():
            cache[destinations] = cache[sources]

    def _tensors(self) -> list[Tensor]:
        return [cache for layer in self.layers for cache in layer]
