"""What was chosen for one architecture, by shape: `kernels/tuned/sm_90.json`.

A shape that is not there gets the nearest one's choice, if there is one that differs in sizes alone: nearest
by the sum over all sizes of |log2| of their ratio, the first of equals. `Found` says which it was.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import msgspec

TUNED = Path(__file__).parents[1] / "tuned"
MEASURED = "measured"
RANKED = "ranked by what the compiler makes of it, not measured"


class TableError(Exception):
    """A table that cannot be read or written, in one line."""


@dataclass(frozen=True)
class Entry:
    op: str
    shape: Mapping[str, int | str]
    choice: Mapping[str, int]
    basis: str
    """`MEASURED` or `RANKED`."""
    gpu: str
    versions: Mapping[str, str]
    """Of what compiled it: it holds for these."""
    seed: int


@dataclass(frozen=True)
class Found:
    entry: Entry
    is_exact: bool
    """The very shape; else the nearest one."""


@dataclass(frozen=True)
class Table:
    arch: str
    entries: tuple[Entry, ...] = ()

    def find(self, op: str, shape: Mapping[str, int | str]) -> Found | None:
        alike = [entry for entry in self.entries if entry.op == op and _names(entry.shape) == _names(shape)]
        if not alike:
            return None
        nearest = min(alike, key=lambda entry: _distance(entry.shape, shape))
        return Found(nearest, nearest.shape == shape)

    def with_entries(self, entries: Iterable[Entry]) -> Table:
        """New ones in the place of those for the same shape; what was measured gives way to measured only."""
        kept = {_key(entry): entry for entry in self.entries}
        for entry in entries:
            before = kept.get(_key(entry))
            if before is None or before.basis != MEASURED or entry.basis == MEASURED:
                kept[_key(entry)] = entry
        return Table(self.arch, tuple(kept[key] for key in sorted(kept)))


def load(arch: str, folder: Path = TUNED) -> Table:
    """An empty one where there is no file. Raises TableError for one that is no table of it."""
    file = folder / f"{arch}.json"
    if not file.exists():
        return Table(arch)
    try:
        table = msgspec.json.decode(file.read_bytes(), type=Table)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's are of ValueError
        raise TableError(f"{file} cannot be read as a table of choices ({error})") from None
    if table.arch != arch:
        raise TableError(f"{file} is of {table.arch}")
    return table


def check_writable(folder: Path = TUNED) -> None:
    """Raises TableError where `save` would fail: better before the search than behind it."""
    try:
        folder.mkdir(exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TableError(f"{folder} cannot be written ({error.strerror})") from None


def save(table: Table, folder: Path = TUNED) -> Path:
    """An entry a line, so that a difference can be read; who reads meanwhile has the table of before, whole.

    Raises TableError.
    """
    lines = ",\n".join(json.dumps(asdict(entry)) for entry in table.entries)
    file = folder / f"{table.arch}.json"
    try:
        folder.mkdir(exist_ok=True)
        _put(file, f'{{"arch": "{table.arch}", "entries": [\n{lines}\n]}}\n')
    except OSError as error:
        raise TableError(f"{file} cannot be written ({error.strerror})") from None
    return file


def _put(file: Path, text: str) -> None:
    """Takes the place of what was there in one go."""
    beside = file.with_suffix(f".{os.getpid()}.part")
    try:
        beside.write_text(text)
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _names(shape: Mapping[str, int | str]) -> dict[str, Any]:
    """What must be equal: the words, and which sizes there are."""
    return {name: value if isinstance(value, str) else None for name, value in shape.items()}


def _distance(one: Mapping[str, int | str], other: Mapping[str, int | str]) -> float:
    """A size may be 0: a call without sequences has a choice, too."""
    return sum(
        abs(math.log2(max(value, 1) / max(size, 1)))
        for name, value in one.items()
        if isinstance(value, int) and isinstance(size := other[name], int)
    )


def _key(entry: Entry) -> tuple[str, str]:
    return entry.op, json.dumps(entry.shape, sort_keys=True)
