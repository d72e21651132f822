"""Faults to plant into an op: parity must find each of them.

Each op's are in `plants_<op>.py`, as `PLANTS`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kernels.parity.case import OpCase
from kernels.parity.catalogue import OPS, cases_of


@dataclass(frozen=True)
class Plant:
    """`old` is in the op's source exactly once; `new` takes its place."""

    op: str
    old: str
    new: str
    why: str
    """What goes wrong."""
    cases: str = ""
    """Only cases with this in their names are tried: those that are to find it."""


def all_plants() -> Iterator[Plant]:
    for op in OPS:
        yield from importlib.import_module(f"tests.kernels.plants_{op}").PLANTS


def cases_for(plant: Plant) -> list[OpCase]:
    return [case for case in cases_of(plant.op, whole=False) if plant.cases in case.name]


def planted(plant: Plant, folder: Path) -> ModuleType:
    """The op's module with the fault, from a file of its own: Triton reads a kernel's source from there."""
    name = cases_for(plant)[0].module
    source = Path(f"{name.replace('.', '/')}.py")
    text = (Path(__file__).parents[2] / source).read_text()
    assert text.count(plant.old) == 1, f"{source} has {text.count(plant.old)} times: {plant.old}"
    file = folder / f"planted_{source.name}"
    file.write_text(text.replace(plant.old, plant.new))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass in it looks for its own module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module
