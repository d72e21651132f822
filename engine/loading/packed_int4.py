"""Eight 4-bit numbers in an int32, as GPTQ and AWQ pack them into safetensors files.

Both hold for a projection of N outputs and K inputs in groups of G inputs: scales [K / G, N], and zeros
packed along N, [K / G, N / 8]. A weight is (number - zero) · scale.
- GPTQ packs numbers along K: `qweight` [K / 8, N], the lowest four bits first. Its zeros are stored less one,
  but in the format `gptq_v2` as they are. `g_idx` [K] names each input's group.
- AWQ (gemm) packs them along N: `qweight` [K, N / 8], its outputs in the order 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.loading.stored_weight import MIDDLE_INT4, StoredWeight

NUMBERS_IN_WORD = 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output whose number stands in each four bits, from the lowest up."""

Words = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.uint8]


def unpacked(words: Words) -> Numbers:
    """[..., n] → [..., 8n], the lowest four bits of each word first."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    numbers = (np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts) & 15
    return numbers.astype(np.uint8).reshape(*words.shape[:-1], -1)


def gptq_numbers(qweight: Words) -> Numbers:
    """[K / 8, N] → [N, K]"""
    return unpacked(np.ascontiguousarray(qweight.T))


def gptq_zeros(qzeros: Words, *, is_v1: bool) -> Numbers:
    """[K / G, N / 8] → [N, K / G], from 0 to 16."""
    return unpacked(qzeros).T + np.uint8(is_v1)


def awq_numbers(words: Words) -> Numbers:
    """Weights or zeros: [rows, N / 8] → [N, rows]"""
    in_file = unpacked(words).reshape(len(words), -1, NUMBERS_IN_WORD)
    return in_file[..., np.argsort(AWQ_ORDER)].reshape(len(words), -1).T


def int4_weight(numbers: Numbers, zeros: Numbers, scales: npt.NDArray[Any]) -> StoredWeight:
    """`numbers` [N, K]; `zeros` and `scales` [N, K / G]. The middle as zero everywhere needs no offsets."""
    is_symmetric = bool((zeros == MIDDLE_INT4).all())
    offsets = None if is_symmetric else -zeros.astype(np.float32) * scales.astype(np.float32)
    return StoredWeight(np.ascontiguousarray(numbers), scales, offsets, num_bits=4)


def gathered(
    numbers: Numbers, zeros: Numbers, scales: npt.NDArray[Any], groups: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    """[N, K] dequantised, where neighbours may be of different groups: `groups` [K] names them."""
    offset = zeros.astype(np.float32)[:, groups]
    return (numbers.astype(np.float32) - offset) * scales.astype(np.float32)[:, groups]
