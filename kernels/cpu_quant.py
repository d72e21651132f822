"""Quantised weights on a CPU: torch's packed matmuls where they are the faster ones, else a dense weight.

In bfloat16 they win with few rows and lose with many. In float32 they always lose, but there a row's scale
lets int8 be widened in passing, which costs less than reading the dense weight (`cpu_quant_speed.py`,
numbers in `engine/NOTES.md`). So whoever loads a weight says how many sequences may decode together, and
the form is chosen once, by that. A packed weight has no dense copy: many rows, a prefill's, widen it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.quant_layout import MIDDLE_INT4, QuantizedWeight, unpack_int4

FEW_ROWS = 8
"""Up to so many rows the packed matmuls are as fast as a dense one or faster."""
_MANY_ROWS = {8: 8, 4: 64}
"""By bits: with more rows a packed matmul in bfloat16 takes longer than a dense one of the widened weight."""

_ROWS_MULTIPLE = 64
"""Of outputs: what torch's int4 matmul packs together on every CPU that it knows."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedInt8:
    """One scale a row."""

    num_bits: ClassVar[int] = 8
    values: Tensor  # [N, K] int8
    scales: Tensor  # [N]

    def few_rows(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x.contiguous(), self.values, self.scales)

    def many_rows(self, x: Tensor) -> Tensor:
        return F.linear(x, self.values.to(x.dtype)).mul_(self.scales)


@dataclass(frozen=True, slots=True, eq=False)
class PackedInt4:
    """Packed as torch's matmul wants it, and the plain numbers, which many rows are multiplied by."""

    num_bits: ClassVar[int] = 4
    packed: Tensor
    scales_and_offsets: Tensor  # [K // group_size, N, 2]; an offset is that of number 8
    numbers: Tensor  # [N, K // 2] uint8
    group_size: int

    def few_rows(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.contiguous(), self.packed, self.group_size, self.scales_and_offsets
        )
        return product

    def many_rows(self, x: Tensor) -> Tensor:
        scales, offsets = self.scales_and_offsets.transpose(0, 1).unsqueeze(-2).unbind(-1)
        centred = unpack_int4(self.numbers).to(x.dtype).sub_(MIDDLE_INT4)
        grouped = centred.view(len(centred), -1, self.group_size)
        return F.linear(x, grouped.mul_(scales.contiguous()).add_(offsets.contiguous()).flatten(1))


CpuWeight = Tensor | PackedInt8 | PackedInt4


def prepared(weight: QuantizedWeight, dtype: torch.dtype, max_num_seqs: int) -> CpuWeight:
    """The form that `linear` multiplies with, in an engine of so many seats that computes in `dtype`.

    Packed if torch has a matmul for it and there are at most `FEW_ROWS` of them, in bfloat16; in float32 if
    it has 8 bits and a scale a row; else dense.
    """
    suits_few_rows = dtype == torch.bfloat16 and max_num_seqs <= FEW_ROWS
    has_scale_a_row = weight.num_bits == 8 and weight.group_size == weight.shape[1] and weight.offsets is None
    if has_scale_a_row and (suits_few_rows or dtype == torch.float32):
        return packed_int8(weight, dtype)
    if weight.num_bits == 4 and suits_few_rows and _is_packable(weight):
        return packed_int4(weight, dtype)
    return weight.dequantize(dtype)


def linear(x: Tensor, weight: CpuWeight | QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """As the reference's, to the rounding of the packed forms. What was not prepared is widened each time."""
    if isinstance(weight, QuantizedWeight):
        weight = weight.dequantize(x.dtype)
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    is_few = x.dtype == torch.bfloat16 and len(x) <= _MANY_ROWS[weight.num_bits]
    product = weight.few_rows(x) if is_few else weight.many_rows(x)
    return product if bias is None else product.add_(bias)


def _is_packable(weight: QuantizedWeight) -> bool:
    num_rows, num_columns = weight.shape
    return num_rows % _ROWS_MULTIPLE == 0 and weight.group_size in (32, 64, 128) and num_columns % 64 == 0


def packed_int8(weight: QuantizedWeight, dtype: torch.dtype) -> PackedInt8:
    return PackedInt8(weight.values, weight.scales[:, 0].to(dtype).contiguous())


def packed_int4(weight: QuantizedWeight, dtype: torch.dtype) -> PackedInt4:
    scales = weight.scales.float()
    offsets = 0 * scales if weight.offsets is None else weight.offsets.float() + MIDDLE_INT4 * scales
    numbers = unpack_int4(weight.values).int()
    return PackedInt4(
        torch._convert_weight_to_int4pack_for_cpu(numbers, 1),
        torch.stack((scales, offsets), dim=-1).transpose(0, 1).to(dtype).contiguous(),
        weight.values,
        weight.group_size,
    )
