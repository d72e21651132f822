"""A matrix that its file holds quantised, in numpy: what every format's own packing is read into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

MIDDLE_INT4 = 8
"""Subtracted from 4-bit numbers that come without offsets."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """W [N, K] = numbers · scale + offset, by groups; 4 bits without offsets are (numbers - 8) · scale."""

    numbers: npt.NDArray[Any]
    """[N, K]: int8 for 8 bits, uint8 of 0..15 for 4."""
    scales: npt.NDArray[Any]
    """[N, K // group size], any float."""
    offsets: npt.NDArray[Any] | None
    """Like scales."""
    num_bits: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def group_size(self) -> int:
        return int(self.numbers.shape[1] // self.scales.shape[1])

    def with_rows(self, rearranged: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> StoredWeight:
        """Its rows in another order."""
        return replace(
            self,
            numbers=rearranged(self.numbers),
            scales=rearranged(self.scales),
            offsets=None if self.offsets is None else rearranged(self.offsets),
        )

    def dequantize(self) -> npt.NDArray[np.float32]:
        """A product, then a sum, each in float32."""
        centred = self.num_bits == 4 and self.offsets is None
        numbers = self.numbers.astype(np.float32) - np.float32(MIDDLE_INT4 if centred else 0)
        weight = numbers.reshape(*self.scales.shape, -1) * self.scales.astype(np.float32)[..., None]
        if self.offsets is not None:
            weight += self.offsets.astype(np.float32)[..., None]
        return weight.reshape(self.shape)
