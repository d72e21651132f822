"""Runs a case: make, poison, run, compare. One row for each comparison."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import torch
import triton
from torch import Tensor

from kernels.parity.case import Inputs, OpCase, Outputs
from kernels.parity.poison import PoisonedMemory
from kernels.parity.tolerance import Difference, compare


@dataclass(frozen=True, slots=True)
class Row:
    """One output of a case against one of its oracles."""

    op: str
    case: str
    against: str
    """The reference, what the case calls its other implementation, or "stored"."""
    output: int
    relative: float
    max_abs: float
    index: tuple[int, ...] | None
    """The first element out of bounds, else the worst one; None where nothing differs."""
    failure: str | None
    near_ties: int = 0
    """Rows of the output that may be drawn otherwise, and were not compared."""

    @property
    def place(self) -> str:
        """Whose element this is about."""
        at = "" if self.index is None else f" at {list(self.index)}"
        return f"{self.op} {self.case}: output {self.output} against {self.against}{at}"

    @property
    def told(self) -> str:
        """The failure with where it was."""
        return f"{self.place}: {self.failure}"


def device_in_use() -> torch.device:
    """A GPU if there is one, unless kernels are interpreted."""
    is_compiled = torch.cuda.is_available() and not triton.knobs.runtime.interpret
    return torch.device("cuda" if is_compiled else "cpu")


def check(case: OpCase, device: torch.device, module: ModuleType | None = None) -> list[Row]:
    """The op against its reference and, where the case names one, another implementation.

    `module` takes the place of the op's own, to see that a fault in it is found.
    """
    try:
        inputs = make_inputs(case, device)
        outputs = run_poisoned(case, inputs, module)
        first, *rows = compared(case, "reference", outputs, case.reference(inputs))
        if case.num_near_ties is not None:
            first = replace(first, near_ties=case.num_near_ties(outputs))
        rows = [first, *rows]
        if case.other is not None:
            rows += compared(case, case.other_name, outputs, case.other(inputs))
    except Exception as error:  # a case that cannot run has failed, and the others are still of interest
        return [broken(case, f"{type(error).__name__}: {error}")]
    return rows


def make_inputs(case: OpCase, device: torch.device) -> Inputs:
    """The same in every run: seeded by the case's key."""
    return case.make(torch.Generator().manual_seed(zlib.crc32(case.key.encode())), device)


def run_poisoned(case: OpCase, inputs: Inputs, module: ModuleType | None = None) -> Outputs:
    """The op's outputs, from memory that held NaN (integers: their largest value) before.

    Raises ValueError if it changed an input.
    """
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, Tensor)}
    with PoisonedMemory(), np.errstate(all="ignore"):  # the interpreter is numpy's, and GPUs don't warn
        outputs = case.run(module or importlib.import_module(case.module), inputs)
    changed = [name for name, value in before.items() if not _is_same(value, inputs[name])]
    if changed:
        raise ValueError(f"input {changed[0]} was changed")
    return outputs


def compared(case: OpCase, against: str, outputs: Outputs, expected: Outputs) -> Iterator[Row]:
    if len(outputs) != len(expected):
        yield broken(case, f"{len(outputs)} outputs, not {len(expected)}", against)
        return
    for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        yield row(case, against, number, compare(output, wanted, case.dtype))


def row(case: OpCase, against: str, output: int, found: Difference) -> Row:
    return Row(case.op, case.name, against, output, found.relative, found.max_abs, found.index, found.reason)


def broken(case: OpCase, failure: str, against: str = "reference") -> Row:
    return Row(case.op, case.name, against, 0, float("inf"), float("inf"), None, failure)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Bit by bit, so that NaN equals itself."""
    one, other = (x.reshape(-1).view(torch.uint8) for x in (one, other))
    return torch.equal(one, other)
