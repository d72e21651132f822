"""A file of cases: what went in and what came out, with the versions that made it.

Format: a zip of numpy arrays (`.npz`, read without pickle). `manifest` is JSON and names the arrays of each
case; a tensor is stored as its bytes, for numpy has neither bfloat16 nor fp8.

A damaged file is refused. One that was made to do harm is not: kernels read where its block tables point.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.parity.case import Inputs, Outputs

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64,
        torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
_MANIFEST = "manifest"
_MAX_BYTES = 2**32
"""Unpacked: many times the whole grid. A few packed bytes can announce any size."""


class ArchiveError(Exception):
    """The file cannot be read or written, in one line."""


class Versions(msgspec.Struct, frozen=True):
    headrace: str
    torch: str
    triton: str
    device: str
    """A GPU's name, or how the kernels ran without one."""


class GreedyAnswer(msgspec.Struct, frozen=True):
    """What a model says, token by token, and how far before the second best each token was."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    margins: list[float]

    def __post_init__(self) -> None:
        if len(self.margins) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens with {len(self.margins)} margins")


class _StoredTensor(msgspec.Struct, frozen=True, tag="tensor"):
    array: str
    dtype: str
    shape: list[int]


class _StoredValue(msgspec.Struct, frozen=True, tag="value"):
    """A plain value; `parts` instead, where it is a tuple."""

    plain: bool | int | float | str | list[Any] | dict[str, Any] | None = None
    parts: list[_StoredTensor | _StoredValue] | None = None


_Stored = _StoredTensor | _StoredValue


class _StoredCase(msgspec.Struct, frozen=True):
    op: str
    name: str
    inputs: dict[str, _Stored]
    outputs: list[_StoredTensor]


class _Manifest(msgspec.Struct, frozen=True):
    format: Literal[1]
    versions: Versions
    cases: list[_StoredCase]
    greedy: list[GreedyAnswer]


@dataclass(frozen=True, slots=True)
class Record:
    """One case as it was run."""

    op: str
    name: str
    inputs: Inputs
    outputs: Outputs


@dataclass(frozen=True, slots=True)
class Archive:
    versions: Versions
    records: Sequence[Record]
    greedy: Sequence[GreedyAnswer]
    """Empty: no model was run."""


def write(path: Path, archive: Archive) -> None:
    """Raises ArchiveError; also for an input that is neither a tensor nor a plain value."""
    arrays: dict[str, npt.NDArray[np.uint8]] = {}

    def store(value: Any, place: str) -> _Stored:
        if isinstance(value, Tensor):
            return store_tensor(value)
        if isinstance(value, tuple):
            return _StoredValue(parts=[store(part, place) for part in value])
        if value is None or isinstance(value, bool | int | float | str | list | dict):
            return _StoredValue(plain=value)
        raise ArchiveError(f"{place}: a {type(value).__name__} cannot be stored")

    def store_tensor(tensor: Tensor) -> _StoredTensor:
        name = f"t{len(arrays)}"
        arrays[name] = tensor.cpu().reshape(-1).view(torch.uint8).numpy()
        return _StoredTensor(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))

    cases = [
        _StoredCase(
            record.op,
            record.name,
            {
                name: store(value, f"{record.op} {record.name}: {name}")
                for name, value in record.inputs.items()
            },
            [store_tensor(output) for output in record.outputs],
        )
        for record in archive.records
    ]
    manifest = msgspec.json.encode(_Manifest(1, archive.versions, cases, list(archive.greedy)))
    try:
        with path.open("wb") as file:  # an open file keeps its name: numpy would add .npz to another
            np.savez_compressed(
                file, allow_pickle=False, **{_MANIFEST: np.frombuffer(manifest, np.uint8), **arrays}
            )
    except OSError as error:
        raise ArchiveError(f"{path} cannot be written ({error.strerror})") from None


def read(path: Path, device: torch.device) -> Archive:
    """Tensors come back on `device`, contiguous. Raises ArchiveError for what is no such file."""
    try:
        with path.open("rb") as opened:
            arrays = _arrays(opened)
        manifest = msgspec.json.decode(arrays[_MANIFEST].tobytes(), type=_Manifest)
        records = [
            Record(
                case.op,
                case.name,
                {name: _load(stored, arrays, device) for name, stored in case.inputs.items()},
                tuple(_load_tensor(stored, arrays, device) for stored in case.outputs),
            )
            for case in manifest.cases
        ]
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read ({error.strerror or error})") from None
    except Exception:  # zipfile, zlib, numpy and torch each have errors of their own for damaged bytes
        raise ArchiveError(f"{path} is no file of stored cases, or a damaged one") from None
    return Archive(manifest.versions, records, manifest.greedy)


def _arrays(opened: IO[bytes]) -> dict[str, npt.NDArray[np.uint8]]:
    """Raises whatever the libraries raise, and ValueError for what `write` does not write."""
    with zipfile.ZipFile(opened) as zipped:
        if sum(member.file_size for member in zipped.infolist()) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES} bytes")
    opened.seek(0)
    with np.load(opened, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
            raise ValueError(f"{name} is no array of bytes")
    return arrays


def _load(stored: _Stored, arrays: Mapping[str, Any], device: torch.device) -> Any:
    if isinstance(stored, _StoredTensor):
        return _load_tensor(stored, arrays, device)
    if stored.parts is not None:
        return tuple(_load(part, arrays, device) for part in stored.parts)
    return stored.plain


def _load_tensor(stored: _StoredTensor, arrays: Mapping[str, Any], device: torch.device) -> Tensor:
    """Raises ValueError for bytes that are not the shape's: nothing is made as large as a manifest says."""
    array, dtype = arrays[stored.array].reshape(-1), _DTYPES[stored.dtype]
    if prod(stored.shape) * dtype.itemsize != len(array):
        raise ValueError(f"{stored.array} has {len(array)} bytes, not those of {stored.shape}")
    tensor = torch.empty(stored.shape, dtype=dtype)
    tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(array))
    return tensor.to(device)
