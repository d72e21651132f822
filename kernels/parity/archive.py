"""A file of cases: what went in and what came out, with the versions that made it.

Format: a zip of numpy arrays (`.npz`, read without pickle). `manifest` is JSON and names the arrays of each
case; a tensor is stored as its bytes, for numpy has neither bfloat16 nor fp8.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            manifest = msgspec.json.decode(file[_MANIFEST].tobytes(), type=_Manifest)
            arrays = {name: file[name] for name in file.files if name != _MANIFEST}
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
    except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, msgspec.MsgspecError):
        raise ArchiveError(f"{path} is no file of stored cases, or a damaged one") from None
    return Archive(manifest.versions, records, manifest.greedy)


def _load(stored: _Stored, arrays: Mapping[str, Any], device: torch.device) -> Any:
    if isinstance(stored, _StoredTensor):
        return _load_tensor(stored, arrays, device)
    if stored.parts is not None:
        return tuple(_load(part, arrays, device) for part in stored.parts)
    return stored.plain


def _load_tensor(stored: _StoredTensor, arrays: Mapping[str, Any], device: torch.device) -> Tensor:
    tensor = torch.empty(stored.shape, dtype=_DTYPES[stored.dtype])
    tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(arrays[stored.array]))
    return tensor.to(device)
