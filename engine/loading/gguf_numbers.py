"""Quantised GGUF tensors as numbers, scales and offsets: exactly what their blocks hold.

A block of 32 weights has one scale; its 4-bit numbers stand in the low halves of 16 bytes, then in the high
ones. Q4_K has eight runs of 32 in a block, two in each 32 bytes; their scales and minima have 6 bits each.
Layouts: llama.cpp, ggml/src/ggml-common.h and ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.loading.stored_weight import StoredWeight

Blocks = npt.NDArray[np.uint8]
_Parts = tuple[npt.NDArray[np.generic], npt.NDArray[np.floating], npt.NDArray[np.floating] | None]
"""Numbers, and a scale and perhaps an offset for each 32 of them, in the order of the weights."""


def stored_weight(type_name: str, rows: Blocks, num_columns: int) -> StoredWeight:
    """`rows` [N, bytes of a row] of one of `KEPT_TYPES`."""
    block_bytes, reader = _READERS[type_name]
    numbers, scales, offsets = reader(np.ascontiguousarray(rows).reshape(-1, block_bytes))
    num_rows = len(rows)
    return StoredWeight(
        numbers.reshape(num_rows, num_columns),
        scales.reshape(num_rows, -1),
        None if offsets is None else offsets.reshape(num_rows, -1),
        num_bits=8 if type_name == "Q8_0" else 4,
    )


def _halves(blocks: Blocks, start: int) -> npt.NDArray[np.float16]:
    """The float16 at this byte of each block: [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)


def _nibbles(packed: Blocks) -> Blocks:
    """[..., n] bytes → [..., 2n] numbers: low halves, then high ones."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _q8_0(blocks: Blocks) -> _Parts:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _halves(blocks, 0), None


def _q4_0(blocks: Blocks) -> _Parts:
    return _nibbles(blocks[:, 2:]), _halves(blocks, 0), None


def _q4_1(blocks: Blocks) -> _Parts:
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q4_k(blocks: Blocks) -> _Parts:
    scale, least = (_halves(blocks, start).astype(np.float32) for start in (0, 2))
    packed = blocks[:, 4:16]
    first, second, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (high & 15) | (first >> 6 << 4)), axis=1)
    minima = np.concatenate((second & 63, (high >> 4) | (second >> 6 << 4)), axis=1)
    # float16 times 6 bits is exact in float32, and so is the minimum's sign.
    return _nibbles(blocks[:, 16:].reshape(-1, 4, 32)), scale * scales, -(least * minima)


_READERS = {"Q8_0": (34, _q8_0), "Q4_0": (18, _q4_0), "Q4_1": (20, _q4_1), "Q4_K": (144, _q4_k)}
"""Name → (bytes in a block, reader)."""

KEPT_TYPES = frozenset(_READERS)
"""Types whose numbers fit a weight of 8 or 4 bits in groups of 32."""
