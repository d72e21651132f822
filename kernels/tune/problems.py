"""The shapes that are tuned, each with its space and with what is used where nothing was tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import torch

from kernels.attention_decode import choose_num_splits, default_tile
from kernels.attention_tile import backward_tile, forward_tile
from kernels.audit.configurations import MODELS
from kernels.roofline import ITEM_BYTES, read_by_tiles
from kernels.tune.matmul_problems import quant_products, w8a8_products
from kernels.tune.problem import Problem, Turns
from kernels.tune.space import Space
from kernels.tuned_choice import heads_shape

DTYPE = "bfloat16"
_CUT = {"num_keys": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3, 4, 5)}
DECODE = Space({"num_rows": (16, 32, 64), **_CUT, "num_splits": (1, 2, 4, 8, 16, 32, 64)})
MANY = Space({"num_rows": (32, 64, 128, 256), **_CUT})


def problems(op: str, arch: str, models: Sequence[str] = ()) -> list[Problem]:
    """Those of all models, or of the named ones. Raises KeyError for an op or model that isn't there."""
    make = _MAKERS[op]
    generation = int(arch.removeprefix("sm_")) // 10
    return [problem for name in models or MODELS for problem in make(name, MODELS[name], generation)]


def _decode(name: str, model: Mapping[str, int], generation: int) -> Iterator[Problem]:
    for num_seqs, max_len in ((1, 32768), (32, 4096), (256, 4096)):
        arguments = {**model, "num_seqs": num_seqs, "max_len": max_len, "dtype": DTYPE}
        splits = choose_num_splits(num_seqs * model["num_kv_heads"], max_len, torch.device("meta"))
        yield Problem(
            op="attention_decode",
            name=f"{name}, {num_seqs} of {max_len} keys",
            shape=_shape(model, num_seqs=num_seqs, max_len=max_len),
            arguments=arguments,
            space=DECODE,
            start=(*astuple(default_tile(model["head_dim"], torch.bfloat16, torch.bfloat16)), splits),
            turns=partial(_decode_turns, arguments),
        )


def _prefill(name: str, model: Mapping[str, int], generation: int) -> Iterator[Problem]:
    arguments = {**model, "num_seqs": 1, "num_tokens": 2048, "max_len": 8192, "dtype": DTYPE}
    yield Problem(
        op="attention_prefill",
        name=f"{name}, 2048 queries behind 6144 keys",
        shape=_shape(model, num_tokens=2048, max_len=8192),
        arguments=arguments,
        space=MANY,
        start=astuple(forward_tile(model["head_dim"], torch.bfloat16, generation)),
        turns=partial(_prefill_turns, arguments),
    )


def _flash(name: str, model: Mapping[str, int], generation: int) -> Iterator[Problem]:
    ways = {"forward": (forward_tile, _forward_turns), "backward": (backward_tile, _backward_turns)}
    for way, (tile, turns) in ways.items():
        arguments = {**model, "num_tokens": 4096, "is_backward": way == "backward", "dtype": DTYPE}
        yield Problem(
            op="attention_flash",
            name=f"{name}, {way}, 4096 tokens",
            shape=_shape(model, num_tokens=4096) | {"way": way},
            arguments=arguments,
            space=MANY,
            start=astuple(tile(model["head_dim"], torch.bfloat16, generation)),
            turns=partial(turns, arguments),
        )


def _shape(model: Mapping[str, int], **sizes: int) -> dict[str, int | str]:
    return heads_shape(torch.bfloat16, **model, **sizes)


def _decode_turns(of: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, Turns]:
    group = of["num_heads"] // of["num_kv_heads"]
    rows, keys = min(max(16, _power(group)), chosen["num_rows"]), chosen["num_keys"]
    programs = of["num_seqs"] * of["num_kv_heads"] * -(-group // rows)
    number = programs * -(-of["max_len"] // keys)
    return {"_attend": Turns(number, 2 * _product(of, rows, keys), _bytes(of, keys), num_loads=2)}


def _prefill_turns(of: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, Turns]:
    group = of["num_heads"] // of["num_kv_heads"]
    queries, keys = max(1, chosen["num_rows"] // group), chosen["num_keys"]
    rows = max(16, _power(queries * group))
    read = read_by_tiles(of["max_len"] - of["num_tokens"], of["num_tokens"], queries, None)
    number = of["num_kv_heads"] * read // keys
    return {"_prefill": Turns(number, 2 * _product(of, rows, keys), _bytes(of, keys), num_loads=2)}


def _forward_turns(of: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, Turns]:
    rows, keys = chosen["num_rows"], chosen["num_keys"]
    number = of["num_heads"] * read_by_tiles(0, of["num_tokens"], rows, None) // keys
    return {"_forward_kernel": Turns(number, 2 * _product(of, rows, keys), _bytes(of, keys))}


def _backward_turns(of: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, Turns]:
    """Four products a tile for the gradients of keys and values, three for those of queries."""
    rows, keys = chosen["num_rows"], chosen["num_keys"]
    a_product = _product(of, rows, keys)
    by_keys = of["num_heads"] * read_by_tiles(0, of["num_tokens"], keys, None) // rows
    by_rows = of["num_heads"] * read_by_tiles(0, of["num_tokens"], rows, None) // keys
    return {
        "_key_gradients_kernel": Turns(by_keys, 4 * a_product, _bytes(of, rows)),
        "_query_gradients_kernel": Turns(by_rows, 3 * a_product, _bytes(of, keys)),
    }


def _product(of: Mapping[str, Any], rows: int, keys: int) -> int:
    """Operations of one tile's product, heads padded to a power of two."""
    return 2 * rows * keys * _power(of["head_dim"])


def _bytes(of: Mapping[str, Any], number: int) -> int:
    """Of as many keys and values, or queries and gradients."""
    a_pair: int = 2 * of["head_dim"] * ITEM_BYTES[of["dtype"]]
    return number * a_pair


def _power(number: int) -> int:
    """The first power of two that holds it."""
    return 1 << (number - 1).bit_length()


_MAKERS: dict[str, Callable[[str, Mapping[str, int], int], Iterator[Problem]]] = {
    "attention_decode": _decode,
    "attention_prefill": _prefill,
    "attention_flash": _flash,
    "matmul_quant": quant_products,
    "matmul_w8a8": w8a8_products,
}
