"""Cases of `rms_norm` and `add_rms_norm`: rows longer than a tile, heads in a view, large and tiny values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from types import ModuleType

import torch

from kernels import reference
from kernels.parity.case import DTYPES, Inputs, OpCase, Outputs

EPS = 1e-5
QUICK = ((3, 576), (5, 80), (2, 1536))
WHOLE = (*QUICK, (1, 1), (7, 64), (33, 100), (2, 4096), (1, 8192))
"""(T, hidden)"""
HEADS = ((3, 5, 64), (9, 2, 128))
"""(T, heads, D): the norm of each head, every second one of a wider projection."""
MAGNITUDES = (1.0, 1e-4, 100.0)


def cases(*, whole: bool) -> Iterator[OpCase]:
    shapes = WHOLE if whole else QUICK
    for dtype, shape, is_sum in product(DTYPES, shapes, (False, True)):
        yield _case(dtype, shape, is_sum=is_sum)
    for dtype, shape in product(DTYPES, HEADS if whole else HEADS[:1]):
        yield _case(dtype, shape, is_sum=False)
    for magnitude in MAGNITUDES[1:]:
        yield _case(torch.float16, QUICK[0], is_sum=True, magnitude=magnitude)


def _case(dtype: torch.dtype, shape: tuple[int, ...], *, is_sum: bool, magnitude: float = 1.0) -> OpCase:
    what = "with residual" if is_sum else "alone"
    return OpCase(
        op="rms_norm",
        name=f"{str(dtype).removeprefix('torch.')} {what} {list(shape)} · {magnitude:g}",
        module="kernels.rms_norm",
        dtype=dtype,
        make=partial(_make, dtype=dtype, shape=shape, is_sum=is_sum, magnitude=magnitude),
        run=_run,
        reference=_reference,
    )


def _make(
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    is_sum: bool,
    magnitude: float,
) -> Inputs:
    wider = (shape[0], 2 * shape[1] + 1, shape[2]) if len(shape) == 3 else shape
    x = magnitude * torch.randn(wider, generator=generator)
    inputs = {"x": x, "weight": torch.rand(shape[-1], generator=generator) + 0.5}
    if is_sum:
        inputs["residual"] = magnitude * torch.randn(shape, generator=generator)
    made = {name: tensor.to(device, dtype) for name, tensor in inputs.items()}
    if len(shape) == 3:
        made["x"] = made["x"][:, 1::2]
    return made


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    if "residual" not in inputs:
        return (module.rms_norm(inputs["x"], inputs["weight"], EPS),)
    normed, total = module.add_rms_norm(inputs["x"], inputs["residual"], inputs["weight"], EPS)
    return normed, total


def _reference(inputs: Inputs) -> Outputs:
    x, weight = inputs["x"].double(), inputs["weight"].double()
    if "residual" not in inputs:
        return (reference.rms_norm(x, weight, EPS),)
    total = x + inputs["residual"].double()
    return reference.rms_norm(total, weight, EPS), total
