"""Weights in 8 or 4 bits: w = q · scale + offset.

A row of 4-bit numbers is packed by halves: byte j holds number j in its low four bits, number K / 2 + j in
its high ones. So bytes side by side are two runs of numbers side by side, whatever the group.

Scales are stored group after group, all rows of one side by side: that is how a kernel reads them. They may
be of any floating type. A weight of 4 bits in groups of 64 takes half a byte and, for its share of scale and
offset, 1 / 16 in float16 or 1 / 8 in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quant_grid import LARGEST_INT4, divisor, int4_grid, rounded_up

GROUP_SIZES = (32, 64, 128)
"""Besides a whole row."""
LARGEST_INT8 = 127
MIDDLE_INT4 = 8
"""Subtracted from 4-bit numbers that come without offsets."""
SLAB_NUMBERS = 1 << 18
"""Quantised at a time on a CPU: few enough for its cache, which halves the time."""
GPU_SLAB_NUMBERS = 1 << 24
"""Elsewhere: enough that it computes rather than launches."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """W [N, K]."""

    values: Tensor
    """8 bits: int8 [N, K]; 4 bits: uint8 [N, K // 2], packed by halves. Contiguous."""
    scales: Tensor
    """[N, K // group_size], as strides (1, N)."""
    offsets: Tensor | None
    """Like scales. None: symmetric, with 4 bits w = (q - 8) · scale."""
    group_size: int
    """32, 64, 128, or K: one group a row."""
    num_bits: int

    def __post_init__(self) -> None:
        if (self.num_bits, self.values.dtype) not in ((8, torch.int8), (4, torch.uint8)):
            raise ValueError(f"{self.num_bits} bits in {self.values.dtype}: 8 are int8, 4 are uint8")
        num_rows, num_columns = self.shape
        _check_group(num_columns, self.group_size, self.num_bits)
        wanted = (num_rows, num_columns // self.group_size)
        for name, tensor in (("scales", self.scales), ("offsets", self.offsets)):
            if tensor is not None and (tensor.shape != wanted or not tensor.dtype.is_floating_point):
                raise ValueError(f"{name} of {tensor.dtype} {list(tensor.shape)}, not floats {list(wanted)}")
            if tensor is not None and not tensor.t().is_contiguous():
                raise ValueError(f"{name} must lie group after group: from_parts lays them so")

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        num_rows, width = self.values.shape
        return num_rows, width * (8 // self.num_bits)

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in (self.values, self.scales, self.offsets) if x is not None)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[N, K], computed in float32 (in float64 for that): a product, then a sum."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        numbers = _grouped(self._numbers().to(wide), self.group_size)
        weight: Tensor = numbers * self.scales.to(wide)[..., None]
        if self.offsets is not None:
            weight += self.offsets.to(wide)[..., None]
        return weight.flatten(1).to(dtype)

    def to(self, device: torch.device | str) -> QuantizedWeight:
        return QuantizedWeight(
            self.values.to(device),
            self.scales.to(device),
            None if self.offsets is None else self.offsets.to(device),
            self.group_size,
            self.num_bits,
        )

    def _numbers(self) -> Tensor:
        """Whole numbers [N, K], the middle subtracted."""
        if self.num_bits == 8:
            return self.values
        numbers = unpack_int4(self.values)
        return numbers if self.offsets is not None else numbers.to(torch.int8) - MIDDLE_INT4


def quantize_int8(
    weight: Tensor,  # [N, K], any float
    group_size: int | None = None,  # None: K
    scale_dtype: torch.dtype = torch.float32,
) -> QuantizedWeight:
    """Symmetric: scale = max |w| / 127 of the group, in `scale_dtype` rounded up; each |error| ≤ scale / 2.

    Raises ValueError for a group that does not fit, and for scales that are not finite in `scale_dtype`.
    """
    group = _checked_group(weight, group_size, 8)
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = _new_scales(weight, group, scale_dtype)
    for rows in _slabs(weight):
        grouped = _grouped(weight[rows].float(), group)
        scales[rows] = rounded_up(grouped.abs().amax(dim=2) / LARGEST_INT8, scale_dtype)
        numbers = (grouped / divisor(scales[rows])).round().clamp(-LARGEST_INT8, LARGEST_INT8)
        values[rows] = numbers.flatten(1).to(torch.int8)
    _check_finite(scales)
    return QuantizedWeight(values, scales, None, group, 8)


def quantize_int4(
    weight: Tensor,  # [N, K], any float
    group_size: int = 64,
    scale_dtype: torch.dtype = torch.float16,
) -> QuantizedWeight:
    """On the grid of least squared error that `quant_grid` finds: weights on it are right to half a step, a
    few beyond its ends are off by more. Never worse, in squares, than a grid from least value to greatest.

    Raises ValueError for a group that does not fit, and for scales that are not finite in `scale_dtype`.
    """
    group = _checked_group(weight, group_size, 4)
    values = torch.empty(len(weight), weight.shape[1] // 2, dtype=torch.uint8, device=weight.device)
    scales, offsets = (_new_scales(weight, group, scale_dtype) for _ in range(2))
    for rows in _slabs(weight):
        grouped = _grouped(weight[rows].float(), group)
        grid = int4_grid(grouped, scale_dtype)
        scales[rows], offsets[rows] = grid.scales, grid.offsets
        values[rows] = pack_int4(grid.numbers.flatten(1).to(torch.uint8))
    _check_finite(scales, offsets)
    return QuantizedWeight(values, scales, offsets, group, 4)


def from_parts(
    q: Tensor,  # [N, K] whole numbers: -128..127 for 8 bits, 0..15 for 4, not packed
    scales: Tensor,  # [N, K // group_size], any float; kept in its type
    offsets: Tensor | None,  # likewise
    num_bits: int,
    group_size: int,
) -> QuantizedWeight:
    """A weight that was quantised elsewhere. Raises ValueError for parts that do not fit each other."""
    low, high = {8: (-128, 127), 4: (0, LARGEST_INT4)}.get(num_bits, (0, -1))
    if low > high:
        raise ValueError(f"weights of {num_bits} bits: only 8 and 4 are known")
    if q.numel() and not low <= int(q.min()) <= int(q.max()) <= high:
        raise ValueError(f"{num_bits} bits are {low}..{high}, not {int(q.min())}..{int(q.max())}")
    _check_group(q.shape[1], group_size, num_bits)
    return QuantizedWeight(
        q.to(torch.int8).contiguous() if num_bits == 8 else pack_int4(q.to(torch.uint8)),
        _group_major(scales),
        None if offsets is None else _group_major(offsets),
        group_size,
        num_bits,
    )


def concat(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Stacks rows: q, k and v as one matrix. Of scales in different types the wider one is taken.

    Raises ValueError for parts of different bits, groups or widths, or if only some have offsets.
    """
    kinds = {(part.num_bits, part.group_size, part.shape[1], part.offsets is None) for part in parts}
    if len(kinds) != 1:
        raise ValueError(f"cannot stack weights of (bits, group, K, is symmetric) {sorted(kinds)}")
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return QuantizedWeight(
        torch.cat([part.values for part in parts]),
        _group_major(torch.cat([part.scales for part in parts])),
        _group_major(torch.cat(offsets)) if offsets else None,
        parts[0].group_size,
        parts[0].num_bits,
    )


def pack_int4(q: Tensor) -> Tensor:
    """uint8 [N, K] of 0..15 → uint8 [N, K // 2]: K is even."""
    low, high = q.chunk(2, dim=1)
    return low | (high << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """The exact inverse: uint8 [N, K // 2] → [N, K]."""
    return torch.cat((packed & 0xF, packed >> 4), dim=1)


def _checked_group(weight: Tensor, group_size: int | None, num_bits: int) -> int:
    group = weight.shape[1] if group_size is None else group_size
    _check_group(weight.shape[1], group, num_bits)
    return group


def _check_group(num_columns: int, group_size: int, num_bits: int) -> None:
    if group_size != num_columns and group_size not in GROUP_SIZES:
        raise ValueError(
            f"groups of {group_size}: only 32, 64, 128 and a whole row of {num_columns} are known"
        )
    if num_columns % group_size:
        raise ValueError(f"rows of {num_columns} are no multiple of the group, {group_size}")
    if num_bits == 4 and num_columns % 2:
        raise ValueError(f"rows of {num_columns}: an odd number of 4-bit numbers cannot be packed")


def _check_finite(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.isfinite().all():
            raise ValueError(f"a scale or offset is not finite in {tensor.dtype}")


def _new_scales(weight: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """[N, K // group], group after group."""
    num_rows, num_columns = weight.shape
    return torch.empty(num_columns // group, num_rows, dtype=dtype, device=weight.device).t()


def _group_major(scales: Tensor) -> Tensor:
    return scales.t().contiguous().t()


def _grouped(x: Tensor, group: int) -> Tensor:
    """[N, K] → [N, K // group, group]"""
    return x.reshape(len(x), -1, group)


def _slabs(weight: Tensor) -> list[slice]:
    num_rows, num_columns = weight.shape
    numbers = SLAB_NUMBERS if weight.device.type == "cpu" else GPU_SLAB_NUMBERS
    a_slab = max(1, numbers // max(num_columns, 1))
    return [slice(first, first + a_slab) for first in range(0, num_rows, a_slab)]
