"""Products with quantised weights: the matrices that are tuned, and what their loops do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple
from functools import partial
from typing import Any

import torch

from kernels.audit.bench_tensors import BenchTensors
from kernels.audit.configurations import FORMATS, LINEARS
from kernels.matmul_quant import multiply_constants
from kernels.matmul_tile import MatmulTile, choose_num_splits, quant_tile, tuned_shape, w8a8_tile
from kernels.quant_layout import QuantizedWeight
from kernels.roofline import ITEM_BYTES
from kernels.tune.problem import Problem, Turns
from kernels.tune.space import Space

DTYPE = "bfloat16"
_CUT = {
    "num_outputs": (32, 64, 128, 256),
    "num_bytes": (32, 64, 128, 256),
    "num_warps": (2, 4, 8),
    "num_stages": (2, 3, 4, 5),
}
QUANT = Space({"num_rows": (8, 16, 32, 64, 128), **_CUT, "num_splits": (1, 2, 4, 8, 16, 32)})
W8A8 = Space({"num_rows": (16, 32, 64, 128, 256), **_CUT})


def quant_products(name: str, model: Mapping[str, int], generation: int) -> Iterator[Problem]:
    """Of a model whose matrices are known."""
    for place, linear in _linears(name):
        for kind in ("W8", "W4 group 64"):
            for num_rows in (1, 64):
                arguments = {**linear, **FORMATS[kind], "num_rows": num_rows, "dtype": DTYPE}
                x, weight = _tensors(arguments)
                tile = quant_tile(num_rows, x.dtype, weight.num_bits)
                yield Problem(
                    op="matmul_quant",
                    name=f"{name}, {place} {kind}, {num_rows} rows",
                    shape=tuned_shape(x, weight),
                    arguments=arguments,
                    space=QUANT,
                    start=(*astuple(tile), _num_splits(num_rows, weight, tile)),
                    turns=partial(_quant_turns, arguments),
                )


def w8a8_products(name: str, model: Mapping[str, int], generation: int) -> Iterator[Problem]:
    for place, linear in _linears(name):
        arguments = {**linear, "num_rows": 2048, "dtype": DTYPE}
        yield Problem(
            op="matmul_w8a8",
            name=f"{name}, {place}, 2048 rows",
            shape=tuned_shape(*_tensors(arguments | FORMATS["W8"])),
            arguments=arguments,
            space=W8A8,
            start=astuple(w8a8_tile(2048)),
            turns=partial(_w8a8_turns, arguments),
        )


def _linears(name: str) -> Iterator[tuple[str, Mapping[str, int]]]:
    for place, linear in LINEARS.items():
        if place.startswith(f"{name} "):
            yield place.removeprefix(f"{name} "), linear


def _tensors(of: Mapping[str, Any]) -> tuple[torch.Tensor, QuantizedWeight]:
    """Without data: what is looked up by."""
    tensors = BenchTensors("meta")
    return tensors.numbers(of["dtype"], of["num_rows"], of["num_columns"]), tensors.quantized(
        of["num_outputs"],
        of["num_columns"],
        of["num_bits"],
        of.get("group_size"),
        of.get("has_offsets", False),
    )


def _num_splits(num_rows: int, weight: QuantizedWeight, tile: MatmulTile) -> int:
    programs = -(-num_rows // tile.num_rows) * -(-weight.shape[0] // tile.num_outputs)
    turns = -(-weight.values.shape[1] // multiply_constants(weight, tile)["BYTES"])
    return choose_num_splits(programs, turns, torch.device("meta"))


def _quant_turns(of: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, Turns]:
    """4 bits: two products a turn, of two runs of the tokens."""
    _, weight = _tensors(of)
    tile = MatmulTile(*(chosen[name] for name in ("num_rows", *_CUT)))
    num_bytes = multiply_constants(weight, tile)["BYTES"]
    return {"_multiply": _turns(of, tile, num_bytes, 8 // of["num_bits"], ITEM_BYTES[of["dtype"]])}


def _w8a8_turns(of: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, Turns]:
    tile = MatmulTile(*(chosen[name] for name in ("num_rows", *_CUT)))
    return {"_multiply_codes": _turns(of, tile, tile.num_bytes, 1, 1)}


def _turns(
    of: Mapping[str, Any], tile: MatmulTile, num_bytes: int, numbers_a_byte: int, item_bytes: int
) -> Turns:
    programs = -(-of["num_rows"] // tile.num_rows) * -(-of["num_outputs"] // tile.num_outputs)
    columns = num_bytes * numbers_a_byte
    return Turns(
        number=programs * -(-of["num_columns"] // columns),
        flops=2 * tile.num_rows * tile.num_outputs * columns,
        num_bytes=tile.num_outputs * num_bytes + tile.num_rows * columns * item_bytes,
    )
