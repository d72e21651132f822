"""Cases of `rope`: positions in any order, heads in a view, in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from types import ModuleType

import torch

from kernels import reference
from kernels.parity.case import DTYPES, Inputs, OpCase, Outputs

MAX_LEN = 512
QUICK = ((3, 5, 64), (2, 18, 80))
WHOLE = (*QUICK, (1, 1, 2), (7, 40, 128), (5, 3, 96), (2, 17, 256), (33, 2, 24))
"""(T, heads, D)"""
Shape = tuple[int, int, int]


def cases(*, whole: bool) -> Iterator[OpCase]:
    for dtype, shape, is_view in product(DTYPES, WHOLE if whole else QUICK, (False, True)):
        yield _case(dtype, shape, is_view=is_view, is_in_place=is_view)


def _case(dtype: torch.dtype, shape: Shape, *, is_view: bool, is_in_place: bool) -> OpCase:
    kind = f"{str(dtype).removeprefix('torch.')}{', a view' if is_view else ''}"
    return OpCase(
        op="rope",
        name=f"{kind}{', in place' if is_in_place else ''} T={shape[0]} heads={shape[1]} D={shape[2]}",
        module="kernels.rope",
        dtype=dtype,
        make=partial(_make, dtype=dtype, shape=shape, is_view=is_view),
        run=partial(_run, is_in_place=is_in_place),
        reference=_reference,
    )


def _make(
    generator: torch.Generator, device: torch.device, dtype: torch.dtype, shape: Shape, is_view: bool
) -> Inputs:
    num_tokens, num_heads, head_dim = shape
    x = torch.randn(num_tokens, 2 * num_heads + 1, head_dim, generator=generator).to(device, dtype)[:, 1::2]
    angles = 6.3 * torch.rand(MAX_LEN, head_dim // 2, generator=generator)
    return {
        "x": x if is_view else x.contiguous(),
        "cos": angles.cos().to(device, dtype),
        "sin": angles.sin().to(device, dtype),
        "positions": torch.randint(0, MAX_LEN, (num_tokens,), generator=generator).to(device),
    }


def _run(module: ModuleType, inputs: Inputs, is_in_place: bool) -> Outputs:
    x, out = inputs["x"], None
    if is_in_place:
        x = out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    return (module.rope(x, inputs["cos"], inputs["sin"], inputs["positions"], out=out),)


def _reference(inputs: Inputs) -> Outputs:
    cos, sin = (inputs[name].double()[inputs["positions"]] for name in ("cos", "sin"))
    return (reference.rope(inputs["x"].double(), cos, sin),)
