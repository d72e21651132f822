"""A safetensors file: its JSON header checked against the file's size, its tensors memory-mapped.

Format: 8 bytes little-endian header length, a JSON object (name → dtype, shape, byte range in the
data), the data. Tensors may begin at any byte; together they cover the data, each byte once.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.loading.digest import weights_digest
from engine.loading.errors import ModelError
from engine.loading.model_file import check_regular

_MAX_HEADER_BYTES = 100_000_000
_REMEDY = "download the file again or give another one"

_FLOATS: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
}
"""bfloat16 is read as its 16 bits: the upper half of a float32."""
_DTYPES: dict[str, type[np.generic]] = {**_FLOATS, "I32": np.int32}


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class SafetensorsFile:
    """Tensors of one file. Raises `ModelError` from `open`, never later."""

    def __init__(self, data: npt.NDArray[np.uint8], entries: dict[str, _Entry], data_start: int) -> None:
        self._data = data
        self._entries = entries
        self._data_start = data_start

    @classmethod
    def open(cls, path: Path, *, has_words: bool = False) -> SafetensorsFile:
        """Maps the file and checks every tensor's type and place. With `has_words` a type may be int32."""
        check_regular(path)
        if path.stat().st_size < 8:
            raise ModelError(f"{path} is a truncated safetensors file", _REMEDY)
        data = np.memmap(path, mode="r", dtype=np.uint8)
        header_bytes = int.from_bytes(data[:8].tobytes(), "little")
        if header_bytes > min(len(data) - 8, _MAX_HEADER_BYTES):
            raise ModelError(
                f"{path} is not a safetensors file or is truncated "
                f"(header of {header_bytes} bytes in a file of {len(data)})",
                _REMEDY,
            )
        entries = _parse_header(path, data[8 : 8 + header_bytes].tobytes())
        data_bytes = len(data) - 8 - header_bytes
        for name, entry in entries.items():
            _check(path, name, entry, data_bytes, _DTYPES if has_words else _FLOATS)
        _check_cover(path, entries, data_bytes)
        return cls(data, entries, 8 + header_bytes)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(entry.shape) for name, entry in self._entries.items()}

    def dtypes(self) -> dict[str, str]:
        """As the format names them: F32, BF16, I32, …"""
        return {name: entry.dtype for name, entry in self._entries.items()}

    def tensor(self, name: str) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
        """The tensor in its shape; half-precision types are widened to float32, exactly."""
        values, dtype = self._values(name), self._entries[name].dtype
        if dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values if dtype in ("F64", "F32") else values.astype(np.float32)

    def words(self, name: str) -> npt.NDArray[np.int32]:
        """A tensor of int32, mapped."""
        return self._values(name)

    def _values(self, name: str) -> npt.NDArray[Any]:
        entry = self._entries[name]
        begin, end = (self._data_start + offset for offset in entry.data_offsets)
        return self._data[begin:end].view(_DTYPES[entry.dtype]).reshape(entry.shape)

    def digest(self) -> str:
        return weights_digest(self._data, self._data_start)


def _parse_header(path: Path, header: bytes) -> dict[str, _Entry]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        return {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path} has a corrupt safetensors header ({error})", _REMEDY) from None


def _check(path: Path, name: str, entry: _Entry, data_bytes: int, dtypes: Collection[str]) -> None:
    if entry.dtype not in dtypes:
        raise ModelError(
            f"tensor {name!r} has type {entry.dtype}, which is not supported",
            f"give a file whose tensors are all {', '.join(dtypes)}",
        )
    begin, end = entry.data_offsets
    needed = prod(entry.shape) * np.dtype(_DTYPES[entry.dtype]).itemsize
    if min(entry.shape, default=1) < 1 or not 0 <= begin <= end <= data_bytes or end - begin != needed:
        raise ModelError(
            f"{path} is corrupt or truncated: tensor {name!r} of shape {entry.shape} at bytes "
            f"{begin}-{end} of {data_bytes}",
            _REMEDY,
        )


def _check_cover(path: Path, entries: dict[str, _Entry], data_bytes: int) -> None:
    """Raises ModelError for a byte of two tensors or of none: the format's rules, kept by its own reader."""
    covered, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin < covered:
            raise ModelError(
                f"{path} is corrupt: tensors {before!r} and {name!r} overlap at bytes "
                f"{begin}-{min(covered, end)}",
                _REMEDY,
            )
        if begin > covered:
            raise _hole(path, covered, begin)
        covered, before = end, name
    if covered < data_bytes:
        raise _hole(path, covered, data_bytes)


def _hole(path: Path, begin: int, end: int) -> ModelError:
    return ModelError(f"{path} is corrupt: bytes {begin}-{end} belong to no tensor", _REMEDY)
