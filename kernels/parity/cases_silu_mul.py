"""Cases of `silu_mul`: widths beside a tile's, gates that are shut and that are wide open."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from types import ModuleType

import torch

from kernels import reference
from kernels.parity.case import DTYPES, Inputs, OpCase, Outputs

QUICK = ((3, 1536), (2, 100))
WHOLE = (*QUICK, (1, 1), (5, 1024), (2, 8960), (17, 64))
"""(T, inner)"""


def cases(*, whole: bool) -> Iterator[OpCase]:
    for dtype, shape in product(DTYPES, WHOLE if whole else QUICK):
        yield _case(dtype, shape)
    for dtype in DTYPES:
        yield _case(dtype, QUICK[1], magnitude=100.0)


def _case(dtype: torch.dtype, shape: tuple[int, int], *, magnitude: float = 2.0) -> OpCase:
    return OpCase(
        op="silu_mul",
        name=f"{str(dtype).removeprefix('torch.')} T={shape[0]} inner={shape[1]} gates of ±{magnitude:g}",
        module="kernels.silu_mul",
        dtype=dtype,
        make=partial(_make, dtype=dtype, shape=shape, magnitude=magnitude),
        run=_run,
        reference=_reference,
    )


def _make(
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, int],
    magnitude: float,
) -> Inputs:
    gate = magnitude * torch.randn(shape, generator=generator)
    up = torch.randn(shape, generator=generator)
    return {"gate_up": torch.cat((gate, up), dim=-1).to(device, dtype)}


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    return (module.silu_mul(inputs["gate_up"]),)


def _reference(inputs: Inputs) -> Outputs:
    return (reference.silu_mul(inputs["gate_up"].double()),)
