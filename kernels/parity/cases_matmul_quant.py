"""Cases of `matmul_quant`: sizes beside a tile's, every group, rows of zeros, tokens of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import ModuleType

import torch
from torch import Tensor

from kernels import reference_matmul_quant
from kernels.dtype_name import dtype_name
from kernels.parity.case import DTYPES, Inputs, OpCase, Outputs
from kernels.quant_layout import QuantizedWeight, from_parts

LARGEST = {8: (-128, 127), 4: (0, 15)}


@dataclass(frozen=True, slots=True)
class Product:
    """One call."""

    dtype: torch.dtype
    num_bits: int
    group_size: int | None = None
    """None: K."""
    num_rows: int = 3
    """Tokens."""
    shape: tuple[int, int] = (70, 96)
    """N, K."""
    has_offsets: bool = False
    has_bias: bool = False
    num_splits: int | None = None
    scale_dtype: torch.dtype = torch.float32
    value_size: float = 1.0
    """Of the tokens' values."""
    is_view: bool = False
    """Tokens lie in wider rows, NaN behind them."""

    @property
    def name(self) -> str:
        parts = [dtype_name(self.dtype), f"W{self.num_bits} group {self.group_size or 'K'}"]
        parts += [f"T={self.num_rows} N={self.shape[0]} K={self.shape[1]}"]
        parts += ["offsets"] * self.has_offsets + ["bias"] * self.has_bias + ["a view"] * self.is_view
        parts += [f"splits={self.num_splits}"] if self.num_splits is not None else []
        parts += [f"scales {dtype_name(self.scale_dtype)}"] if self.scale_dtype != torch.float32 else []
        parts += [f"values of {self.value_size}"] if self.value_size != 1.0 else []
        return " ".join(parts)


def cases(*, whole: bool) -> Iterator[OpCase]:
    yield from map(_case, dict.fromkeys([*_quick(), *_whole()] if whole else _quick()))


def _quick() -> Iterator[Product]:
    for dtype, num_bits in product(DTYPES, (8, 4)):
        yield Product(dtype, num_bits, num_splits=1)
        yield Product(dtype, num_bits, 32, has_offsets=True, num_splits=1)
    four, eight = Product(torch.float16, 4, 64, shape=(20, 192)), Product(torch.float16, 8, shape=(20, 192))
    yield replace(four, num_rows=0)
    yield replace(eight, num_rows=1, shape=(3, 35), has_bias=True)
    yield replace(eight, num_rows=17, shape=(130, 64))
    yield replace(four, num_rows=1, has_offsets=True, has_bias=True, num_splits=2)
    yield replace(four, num_rows=16, has_bias=True, is_view=True)
    yield replace(four, num_rows=7, shape=(5, 192), scale_dtype=torch.float16, has_offsets=True)
    yield replace(four, group_size=None, shape=(20, 300), has_offsets=True)
    yield replace(four, group_size=128, shape=(9, 384), scale_dtype=torch.bfloat16)
    yield replace(eight, num_splits=3, shape=(20, 400), is_view=True)
    yield replace(eight, has_offsets=True, group_size=64)
    yield replace(eight, dtype=torch.float32, value_size=1e30)
    yield replace(four, value_size=100.0, scale_dtype=torch.float16)


def _whole() -> Iterator[Product]:
    for dtype, num_bits, group_size, num_rows in product(
        DTYPES, (8, 4), (32, 64, 128, None), (1, 2, 7, 16, 33)
    ):
        offsets = num_rows % 2 == 0
        yield Product(dtype, num_bits, group_size, num_rows, (70, 384), has_offsets=offsets, has_bias=offsets)
    for num_bits, shape in product((8, 4), ((1, 64), (63, 2), (129, 130), (200, 1000))):
        yield Product(torch.float16, num_bits, None, 9, shape, has_offsets=num_bits == 4)
    for num_bits, num_splits in product((8, 4), (1, 2, 3, 5, 32)):
        yield Product(torch.float16, num_bits, 32, 2, (33, 960), has_offsets=True, num_splits=num_splits)
    for num_rows, num_bits, dtype in product((65, 200), (8, 4), (torch.float16, torch.bfloat16)):
        yield Product(dtype, num_bits, 64, num_rows, (150, 192), has_offsets=True, has_bias=True)
    for num_bits, size in product((8, 4), (1e-2, 100.0)):
        yield Product(torch.float16, num_bits, 32, 4, value_size=size, has_offsets=num_bits == 4)
    yield Product(torch.bfloat16, 4, 64, 4, (70, 128), value_size=1e30, has_offsets=True)


def _case(of: Product) -> OpCase:
    return OpCase(
        op="matmul_quant",
        name=of.name,
        module="kernels.matmul_quant",
        dtype=of.dtype,
        make=partial(_make, of=of),
        run=_run,
        reference=lambda inputs: (
            reference_matmul_quant.matmul_quant(inputs["x"], _weight(inputs), inputs["bias"]),
        ),
    )


def _make(generator: torch.Generator, device: torch.device, of: Product) -> Inputs:
    """The first token and a row of the weight are zeros; so is a scale, whose numbers are not."""
    (num_outputs, num_columns), (low, high) = of.shape, LARGEST[of.num_bits]
    groups = num_columns // (of.group_size or num_columns)
    q = torch.randint(low, high + 1, of.shape, generator=generator, dtype=torch.int16)
    scales = (0.5 + torch.rand(num_outputs, groups, generator=generator)) / high
    offsets = torch.randn(num_outputs, groups, generator=generator) if of.has_offsets else None
    if num_outputs > 2:
        q[1] = 8 if of.num_bits == 4 and offsets is None else 0
        scales[2, -1] = 0.0
    made = from_parts(
        q,
        scales.to(of.scale_dtype),
        None if offsets is None else offsets.to(of.scale_dtype),
        of.num_bits,
        of.group_size or num_columns,
    ).to(device)
    bias = torch.randn(num_outputs, generator=generator).to(device) if of.has_bias else None
    return {
        "x": _tokens(generator, of).to(device)[:, :num_columns],
        "values": made.values,
        "scales_by_group": made.scales.t(),
        "offsets_by_group": None if made.offsets is None else made.offsets.t(),
        "bias": bias,
        "group_size": made.group_size,
        "num_bits": made.num_bits,
        "num_splits": of.num_splits,
    }


def _tokens(generator: torch.Generator, of: Product) -> Tensor:
    """[T, K], or more columns."""
    x = of.value_size * torch.randn(of.num_rows, of.shape[1], generator=generator)
    x[:1] = 0.0 if of.num_rows > 1 else x[:1]
    behind = torch.full((of.num_rows, 8 if of.is_view else 0), float("nan"))
    return torch.cat((x, behind), dim=1).to(of.dtype)


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    made = module.matmul_quant(inputs["x"], _weight(inputs), inputs["bias"], num_splits=inputs["num_splits"])
    return (made,)


def _weight(inputs: Inputs) -> QuantizedWeight:
    offsets = inputs["offsets_by_group"]
    return QuantizedWeight(
        inputs["values"],
        inputs["scales_by_group"].t(),
        None if offsets is None else offsets.t(),
        inputs["group_size"],
        inputs["num_bits"],
    )
