"""Tensors to call an op with: on the `meta` device shapes without data, on a GPU data fair to time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_layout import QuantizedWeight
from kernels.roofline import BLOCK_SIZE, QUANTISED


class BenchTensors:
    """Makes them on one device, the same in every run. Owns its generator."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    def numbers(self, dtype: str, *shape: int) -> Tensor:
        """Of the size of one."""
        named: torch.dtype = getattr(torch, dtype)
        if self._generator is None:
            return torch.empty(shape, dtype=named, device=self._device)
        wide = torch.float32 if dtype in QUANTISED else named
        made = torch.randn(shape, dtype=wide, device=self._device, generator=self._generator)
        return (made * 30).to(named) if dtype == "int8" else made.to(named)

    def cache(
        self, num_tokens: int, num_kv_heads: int, head_dim: int, dtype: str
    ) -> tuple[Tensor, Tensor | None]:
        """Keys or values [N, KVH, B, D] with room for that many tokens behind the null block, and the scales
        [N, KVH, B] that a quantised type has."""
        num_blocks = -(-num_tokens // BLOCK_SIZE) + 1
        cache = self.numbers(dtype, num_blocks, num_kv_heads, BLOCK_SIZE, head_dim)
        if dtype not in QUANTISED:
            return cache, None
        return cache, self.numbers("float32", num_blocks, num_kv_heads, BLOCK_SIZE).abs()

    def quantized(
        self, num_outputs: int, num_columns: int, num_bits: int, group_size: int | None, has_offsets: bool
    ) -> QuantizedWeight:
        """[N, K]; scales in float32 for whole rows (None), else in float16: as quantize_int8 and _int4 do."""
        groups = num_columns // (group_size or num_columns)
        dtype = "float32" if group_size is None else "float16"
        values = self.numbers("int8", num_outputs, num_columns * num_bits // 8)
        return QuantizedWeight(
            values if num_bits == 8 else values.view(torch.uint8),
            self.numbers(dtype, groups, num_outputs).t(),
            self.numbers(dtype, groups, num_outputs).t() if has_offsets else None,
            group_size or num_columns,
            num_bits,
        )

    def block_table(self, num_seqs: int, num_blocks: int) -> Tensor:
        """[S, blocks]: every sequence has blocks of its own, in no order, as after hours of service."""
        return self.shuffled(1, num_seqs * num_blocks).to(torch.int32).view(num_seqs, num_blocks)

    def shuffled(self, first: int, number: int) -> Tensor:
        """The numbers from `first` on, int64."""
        if self._generator is None:
            return torch.empty(number, dtype=torch.int64, device=self._device)
        return first + torch.randperm(number, device=self._device, generator=self._generator)

    def borders(self, num_seqs: int, queries: int) -> Tensor:
        """Where the queries of each sequence begin, int32 [S + 1]."""
        return torch.arange(num_seqs + 1, dtype=torch.int32, device=self._device) * queries

    def filled(self, dtype: str, value: float, number: int) -> Tensor:
        return torch.full((number,), value, dtype=getattr(torch, dtype), device=self._device)
