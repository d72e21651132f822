"""One comparison of an op with its reference: what goes in, who computes, how exact it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What ops compute with."""
BYTES = (torch.int8, torch.float8_e4m3fn)
"""What a cache may be quantised to."""

Inputs = Mapping[str, Any]
"""Tensors and plain values (what JSON holds, and tuples), by name."""
Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class OpCase:
    """Inputs, the op and its reference. `run` and `reference` leave the inputs as they are: an op that
    writes into its arguments gets copies of them."""

    op: str
    name: str
    """Unique within the op; says what is special here, a mask included."""
    module: str
    """Where the op lives: `run` gets this module, or a copy of it with a fault."""
    dtype: torch.dtype
    """What the op computes with: its tolerance holds (`kernels/parity/tolerance.py`)."""
    make: Callable[[torch.Generator, torch.device], Inputs]
    """The generator is a CPU's on every device, so that inputs are the same everywhere."""
    run: Callable[[ModuleType, Inputs], Outputs]
    reference: Callable[[Inputs], Outputs]
    """In float64, brute force."""
    other: Callable[[Inputs], Outputs] | None = None
    """Somebody else's implementation, such as torch's SDPA, held to the same tolerance."""
    other_name: str = "sdpa"
    num_near_ties: Callable[[Outputs], int] | None = None
    """How many rows may well be drawn otherwise (`kernels/parity/tolerance.py`); None: nothing is drawn."""

    @property
    def key(self) -> str:
        return f"{self.op} {self.name}"
