"""The weights of a Hugging Face folder: one safetensors file, or shards and an index of them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from engine.loading.errors import ModelError
from engine.loading.json_file import read_json
from engine.loading.safetensors_file import SafetensorsFile

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_REMEDY = "download the folder again"


class Weights(Protocol):
    """Tensors by name, memory-mapped."""

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def dtypes(self) -> dict[str, str]: ...

    def tensor(self, name: str) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]: ...

    def words(self, name: str) -> npt.NDArray[np.int32]: ...

    def digest(self) -> str: ...


def open_weights(folder: Path, *, has_words: bool = False) -> Weights:
    """Raises ModelError, naming shard or tensor, unless the folder holds all that it announces.

    `has_words` lets tensors be of int32.
    """
    if (folder / _FILE).exists() or not (folder / _INDEX).exists():
        return SafetensorsFile.open(folder / _FILE, has_words=has_words)
    return _open_shards(folder, has_words)


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class _Shards:
    """Several files as one."""

    def __init__(self, shards: Mapping[str, SafetensorsFile], weight_map: Mapping[str, str]) -> None:
        self._shards = shards
        self._weight_map = weight_map
        shapes = {name: shard.shapes() for name, shard in shards.items()}
        self._shapes = {name: shapes[shard][name] for name, shard in weight_map.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    def tensor(self, name: str) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
        return self._shards[self._weight_map[name]].tensor(name)

    def dtypes(self) -> dict[str, str]:
        dtypes = {name: shard.dtypes() for name, shard in self._shards.items()}
        return {name: dtypes[shard][name] for name, shard in self._weight_map.items()}

    def words(self, name: str) -> npt.NDArray[np.int32]:
        return self._shards[self._weight_map[name]].words(name)

    def digest(self) -> str:
        state = blake2b(digest_size=16)
        for shard in self._shards.values():
            state.update(shard.digest().encode())
        return state.hexdigest()


def _open_shards(folder: Path, has_words: bool) -> _Shards:
    weight_map = read_json(folder / _INDEX, _Index).weight_map
    shards = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(
                f"{folder / _INDEX}: shard {name!r} is not the name of a safetensors file", _REMEDY
            )
        shards[name] = SafetensorsFile.open(folder / name, has_words=has_words)
    placed = {(tensor, name) for name, shard in shards.items() for tensor in shard.shapes()}
    stated = set(weight_map.items())
    for tensor, name in sorted(stated - placed):
        raise ModelError(f"tensor {tensor!r} is not in {name!r}, where {_INDEX} says it is", _REMEDY)
    for tensor, name in sorted(placed - stated):
        raise ModelError(f"tensor {tensor!r} is in {name!r}, where {_INDEX} does not say so", _REMEDY)
    return _Shards(shards, weight_map)
