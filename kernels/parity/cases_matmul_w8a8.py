"""Cases of `matmul_w8a8`: sizes beside a tile's, values halfway between two codes, rows of zeros."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from types import ModuleType

import torch

from kernels import reference_matmul_quant
from kernels.parity.case import DTYPES, Inputs, OpCase, Outputs
from kernels.quant_layout import QuantizedWeight

QUICK = ((3, 70, 96), (1, 5, 35), (17, 30, 130))
WHOLE = (
    *QUICK,
    (17, 40, 192),
    (2, 1, 1),
    (7, 33, 1000),
    (16, 128, 64),
    (33, 129, 130),
    (70, 64, 384),
    (200, 150, 96),
)
"""(T, N, K)"""


def cases(*, whole: bool) -> Iterator[OpCase]:
    for dtype, shape in product(DTYPES, WHOLE if whole else QUICK):
        yield _case(dtype, shape)
    yield _case(torch.float16, (0, 5, 64))
    yield _case(torch.float16, QUICK[0], is_view=True)
    yield _case(torch.float32, QUICK[0], value_size=1e30)
    yield _case(torch.float32, QUICK[0], value_size=1e-30)


def _case(
    dtype: torch.dtype, shape: tuple[int, int, int], *, is_view: bool = False, value_size: float = 1.0
) -> OpCase:
    name = f"{str(dtype).removeprefix('torch.')} T={shape[0]} N={shape[1]} K={shape[2]}"
    name += " a view" if is_view else ""
    name += f" values of {value_size:g}" if value_size != 1.0 else ""
    return OpCase(
        op="matmul_w8a8",
        name=name,
        module="kernels.matmul_w8a8",
        dtype=dtype,
        make=partial(_make, dtype=dtype, shape=shape, is_view=is_view, value_size=value_size),
        run=_run,
        reference=_reference,
    )


def _make(
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    is_view: bool,
    value_size: float,
) -> Inputs:
    """The last token is zeros; in the one before, 127 gives the scale 1, and the rest lies halfway."""
    num_rows, num_outputs, num_columns = shape
    x = value_size * torch.randn(num_rows, num_columns, generator=generator)
    if num_rows > 1:
        x[-1] = 0.0
        x[-2] = torch.arange(num_columns) % 126 + 0.5
        x[-2, 0] = 127.0
    if is_view:
        x = torch.cat((x, torch.full((num_rows, 16), float("nan"))), dim=1)
    values = torch.randint(-128, 128, (num_outputs, num_columns), generator=generator, dtype=torch.int8)
    scales = (0.5 + torch.rand(1, num_outputs, generator=generator)) / 127
    scales[0, 0] = 0.0
    inputs = {
        "values": values,
        "scales_by_group": scales,
        "bias": torch.randn(num_outputs, generator=generator),
    }
    placed = {name: tensor.to(device) for name, tensor in inputs.items()}
    return placed | {"x": x.to(device, dtype)[:, :num_columns]}


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    """With a bias and without."""
    x, weight = inputs["x"], _weight(inputs)
    return module.matmul_w8a8(x, weight, inputs["bias"]), module.matmul_w8a8(x, weight)


def _reference(inputs: Inputs) -> Outputs:
    x, weight = inputs["x"], _weight(inputs)
    product_alone = reference_matmul_quant.matmul_w8a8(x, weight)
    return product_alone + inputs["bias"].double(), product_alone


def _weight(inputs: Inputs) -> QuantizedWeight:
    return QuantizedWeight(
        inputs["values"], inputs["scales_by_group"].t(), None, inputs["values"].shape[1], 8
    )
