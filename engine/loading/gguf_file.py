"""A GGUF file: its header parsed and checked, its tensors as memory-mapped bytes.

Format: little-endian; magic, version, tensor count, metadata count; metadata (key, type, value);
tensor descriptions (name, dimensions innermost first, type, offset); aligned tensor data. Nothing in
the header is believed before it is compared with the file's size, so a hostile header costs no
more than one pass over its own bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.loading.digest import weights_digest
from engine.loading.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_REMEDY = "download the file again or give another one"

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9

TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Type number → (name, weights in a block, bytes in a block)."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is outermost first, as torch has it; `start` is the first byte's place in the file."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    start: int

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type_number][0]

    @property
    def num_bytes(self) -> int:
        _, block_weights, block_bytes = TENSOR_TYPES[self.type_number]
        return prod(self.shape) // block_weights * block_bytes


class _Corrupt(Exception):
    """The header contradicts itself or the file's size."""


class _Cursor:
    """Reads forward through the mapped file and never past its end."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self._view = data.data
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self._view) - self.position

    def take(self, num_bytes: int) -> memoryview:
        if num_bytes > self.remaining:
            raise _Corrupt(f"{num_bytes} bytes announced at byte {self.position}, {self.remaining} left")
        start = self.position
        self.position += num_bytes
        return self._view[start : self.position]

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def count(self, what: str, least_bytes_each: int) -> int:
        """A count of things that each need at least so many bytes of what is left."""
        value: int = self.number("<Q")
        if value * least_bytes_each > self.remaining:
            raise _Corrupt(f"{what} {value} does not fit into {self.remaining} bytes")
        return value

    def string(self) -> str:
        # Tokens of a byte-level vocabulary may be cut inside a character: keep every byte.
        return bytes(self.take(self.number("<Q"))).decode("utf-8", "surrogateescape")

    def value(self, type_number: int) -> Any:
        if type_number in _SCALARS:
            return self.number(_SCALARS[type_number])
        if type_number == _STRING:
            return self.string()
        if type_number == _ARRAY:
            return self._array()
        raise _Corrupt(f"unknown metadata type {type_number}")

    def _array(self) -> list[str] | npt.NDArray[Any]:
        item_type = self.number("<I")
        if item_type == _STRING:
            return [self.string() for _ in range(self.count("array length", 8))]
        if item_type not in _SCALARS:
            raise _Corrupt(f"unknown array type {item_type}")
        dtype = np.dtype(_SCALARS[item_type])
        length = self.count("array length", dtype.itemsize)
        return np.frombuffer(self.take(length * dtype.itemsize), dtype=dtype)


class GgufFile:
    """Metadata and tensors of one file. Raises `ModelError` from `open`, never later."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        metadata: dict[str, Any],
        tensors: dict[str, GgufTensor],
        data_start: int,
    ) -> None:
        self._data = data
        self.metadata = metadata
        self.tensors = tensors
        self._data_start = data_start

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Maps the file and parses its header: ~0.1 s for a vocabulary of 50,000 tokens."""
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelError(
                    f"{path} is not a GGUF file (its first bytes are not 'GGUF')", "give a GGUF file"
                )
        data = np.memmap(path, mode="r", dtype=np.uint8)
        try:
            return cls._parse(data)
        except (_Corrupt, struct.error, UnicodeDecodeError) as error:
            raise ModelError(f"{path} is a corrupt or truncated GGUF file ({error})", _REMEDY) from None

    @classmethod
    def _parse(cls, data: npt.NDArray[np.uint8]) -> GgufFile:
        cursor = _Cursor(data)
        cursor.take(len(_MAGIC))
        version = cursor.number("<I")
        if version not in _VERSIONS:
            raise _Corrupt(f"version {version}, not one of {_VERSIONS}")
        num_tensors = cursor.count("tensor count", 24)
        num_metadata = cursor.number("<Q")
        if num_metadata * 13 > cursor.remaining:
            raise _Corrupt(f"metadata count {num_metadata} does not fit into {cursor.remaining} bytes")
        metadata = {}
        for _ in range(num_metadata):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.number("<I"))
        descriptions = [_describe(cursor) for _ in range(num_tensors)]
        data_start = _aligned(cursor.position, metadata.get("general.alignment", 32))
        tensors = {tensor.name: _placed(tensor, data_start, len(data)) for tensor in descriptions}
        return cls(data, metadata, tensors, data_start)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's weights, dequantised, in its shape."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        weights = dequantize(self.rows(name), GGMLQuantizationType(tensor.type_number))
        return np.asarray(weights, dtype=np.float32).reshape(tensor.shape)

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, mapped: its last dimension in them."""
        tensor = self.tensors[name]
        return self._data[tensor.start : tensor.start + tensor.num_bytes].reshape(*tensor.shape[:-1], -1)

    def digest(self) -> str:
        return weights_digest(self._data, self._data_start)


def _describe(cursor: _Cursor) -> GgufTensor:
    name = cursor.string()
    num_dimensions = cursor.number("<I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise _Corrupt(f"tensor {name!r} has {num_dimensions} dimensions")
    shape = tuple(cursor.number("<Q") for _ in range(num_dimensions))[::-1]
    return GgufTensor(name, shape, cursor.number("<I"), cursor.number("<Q"))


def _aligned(position: int, alignment: Any) -> int:
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Corrupt(f"general.alignment {alignment!r} is not a power of two")
    return -(-position // alignment) * alignment


def _placed(tensor: GgufTensor, data_start: int, file_bytes: int) -> GgufTensor:
    if tensor.type_number not in TENSOR_TYPES:
        supported = ", ".join(name for name, _, _ in TENSOR_TYPES.values())
        raise ModelError(
            f"tensor {tensor.name!r} has type {_type_name(tensor.type_number)}, which is not supported",
            f"give a file whose tensors are all {supported}",
        )
    block_weights = TENSOR_TYPES[tensor.type_number][1]
    if 0 in tensor.shape or tensor.shape[-1] % block_weights:
        raise _Corrupt(f"tensor {tensor.name!r} has shape {tensor.shape}")
    placed = GgufTensor(tensor.name, tensor.shape, tensor.type_number, data_start + tensor.start)
    if placed.start + placed.num_bytes > file_bytes:
        raise _Corrupt(
            f"tensor {tensor.name!r} ends at byte {placed.start + placed.num_bytes} of {file_bytes}"
        )
    return placed


def _type_name(type_number: int) -> str:
    from gguf import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(type_number).name)
    except ValueError:
        return f"number {type_number}"
