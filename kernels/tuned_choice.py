"""What was tuned for a shape, as the ops ask for it: on a GPU, from the table of its architecture.

An entry holds for its op, types and model, and for the version of Triton that compiled it. Sizes of the call
(tokens, sequences, their length) may differ: then the nearest entry gives its tile, and nothing that depends
on those sizes, such as splits. Without an entry the op's own choice stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import triton

from kernels.dtype_name import dtype_name
from kernels.tune.table import TUNED, Table, load

CALL_SIZES = frozenset({"num_seqs", "max_len", "num_tokens", "num_rows"})
Shape = Mapping[str, int | str]
Tile = TypeVar("Tile")


@dataclass(frozen=True)
class Choice:
    values: Mapping[str, int]
    is_exact: bool
    """For the very shape; else for one with other sizes of the call."""

    def tile(self, kind: type[Tile]) -> Tile:
        """`kind` is a dataclass whose fields are named as the tuner's choices."""
        made: Any = kind
        tile: Tile = made(**{field.name: self.values[field.name] for field in fields(made)})
        return tile

    @property
    def num_splits(self) -> int | None:
        return self.values.get("num_splits") if self.is_exact else None


def tuned_choice(op: str, shape: Shape, device: torch.device) -> Choice | None:
    """None: not on a GPU, or nothing was tuned that holds here."""
    arch = arch_of(device)
    return None if arch is None else _choice(op, tuple(shape.items()), arch, TUNED)


def heads_shape(
    dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, **sizes: int
) -> dict[str, int | str]:
    """What attention is looked up by."""
    group = num_heads // num_kv_heads
    heads = {"head_dim": head_dim, "group": group, "num_kv_heads": num_kv_heads}
    return {"dtype": dtype_name(dtype), **heads, **sizes}


@cache
def arch_of(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@lru_cache(maxsize=4096)
def _choice(op: str, shape: tuple[tuple[str, int | str], ...], arch: str, folder: Path) -> Choice | None:
    wanted = dict(shape)
    found = _table(arch, folder, triton.__version__, _of_the_model(wanted)).find(op, wanted)
    return None if found is None else Choice(found.entry.choice, found.is_exact)


@lru_cache(maxsize=256)
def _table(arch: str, folder: Path, version: str, model: frozenset[tuple[str, int | str]]) -> Table:
    """Of entries that differ in sizes of the call alone."""
    entries = load(arch, folder).entries
    alike = (e for e in entries if e.versions.get("triton") == version and _of_the_model(e.shape) == model)
    return Table(arch, tuple(alike))


def _of_the_model(shape: Shape) -> frozenset[tuple[str, int | str]]:
    return frozenset(item for item in shape.items() if item[0] not in CALL_SIZES)
