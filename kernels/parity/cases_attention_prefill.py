"""Cases of `attention_prefill`: blocks in any order, and NaN wherever nothing is to be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels import reference_attention
from kernels.attention_tile import AttentionTile
from kernels.block_lists import BlockLists
from kernels.dtype_name import dtype_name
from kernels.parity.case import BYTES, DTYPES, Inputs, OpCase, Outputs
from kernels.parity.paged_attention import PEAKED, Seen, paged_cache, sdpa

NUM_PADDING = 3
"""Tokens behind the last sequence."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: its shapes, and how it is cut."""

    dtype: torch.dtype
    heads: tuple[int, int] = (3, 1)
    """H, KVH."""
    head_dim: int = 64
    block_size: int = 16
    lens: tuple[tuple[int, int], ...] = ((0, 2), (21, 7), (0, 0), (-1, 1), (16, 1))
    """(tokens computed before, queries) of each sequence; (-1, 1) is a padding row: a query, and no key."""
    stored: torch.dtype | None = None
    """None: as `dtype`."""
    window: int | None = None
    soft_cap: float | None = None
    blocks: tuple[int, int] | None = None
    """Queries and keys of a block of the lists; None: no lists."""
    tile: tuple[int, int] = (16, 16)
    """Rows, keys."""
    is_view: bool = False
    """Queries lie between the keys and values of one projection."""

    @property
    def cache_dtype(self) -> torch.dtype:
        return self.stored or self.dtype

    @property
    def seq_lens(self) -> list[int]:
        return [before + queries for before, queries in self.lens]

    @property
    def seen(self) -> list[Seen]:
        """Lists may show a query what lies behind its window."""
        window = None if self.blocks is not None else self.window
        firsts = [0 if window is None else max(before - window + 1, 0) for before, _ in self.lens]
        return list(zip(firsts, self.seq_lens, strict=True))

    @property
    def name(self) -> str:
        parts = [dtype_name(self.dtype), f"GQA {self.heads[0]}/{self.heads[1]} D={self.head_dim}"]
        parts += [f"B={self.block_size} lens={[f'{b}+{n}' for b, n in self.lens]}"]
        parts += [f"KV {dtype_name(self.stored)}"] if self.stored is not None else []
        parts += [f"window={self.window}"] if self.window is not None else []
        parts += [f"soft_cap={self.soft_cap}"] if self.soft_cap is not None else []
        parts += [f"lists={self.blocks[0]}x{self.blocks[1]}"] if self.blocks is not None else []
        parts += [f"tile={self.tile[0]}x{self.tile[1]}"] + ["a view"] * self.is_view
        return " ".join(parts)


def cases(*, whole: bool) -> Iterator[OpCase]:
    yield from map(case_of, dict.fromkeys([*_quick(), *_whole()] if whole else _quick()))


def _quick() -> Iterator[Batch]:
    for dtype in DTYPES:
        yield Batch(dtype)
    short = Batch(torch.float16, lens=((0, 3), (18, 5)))
    for head_dim, heads in ((80, (2, 2)), (96, (6, 2)), (128, (5, 1)), (256, (4, 1))):
        yield replace(short, head_dim=head_dim, heads=heads)
    yield replace(short, block_size=4, tile=(16, 32), is_view=True)
    yield Batch(torch.float32, lens=((43, 9),), window=20)
    yield Batch(torch.float32, lens=((20, 6),), window=3, soft_cap=5.0)
    yield replace(short, stored=torch.int8, head_dim=80, window=7)
    yield replace(short, stored=torch.float8_e4m3fn)
    yield replace(short, dtype=torch.bfloat16, stored=torch.int8)
    yield replace(short, dtype=torch.float32, stored=torch.float8_e4m3fn)
    yield Batch(torch.float32, lens=((40, 9), (0, 5)), blocks=(4, 32))
    yield Batch(torch.float16, lens=((20, 9), (0, 5)), blocks=(8, 16), window=10, stored=torch.int8)


def _whole() -> Iterator[Batch]:
    lens = ((0, 50), (77, 30), (0, 0), (129, 1), (16, 16))
    for dtype, head_dim in product(DTYPES, (64, 80, 96, 128, 256)):
        batch = Batch(dtype, heads=(6, 2), head_dim=head_dim, lens=lens, tile=(32, 32))
        yield batch
        for stored in BYTES:
            yield replace(batch, stored=stored)
    for heads, block_size in product(((1, 1), (8, 8), (32, 8), (7, 1), (71, 1)), (4, 16, 24)):
        yield Batch(torch.float16, heads, block_size=block_size, lens=((30, 9), (0, 4)), tile=(32, 16))
    for window, soft_cap in product((1, 15, 16, 17, 31, 32, 33, 500), (None, 30.0)):
        batch = Batch(torch.float16, lens=lens, window=window, soft_cap=soft_cap)
        yield batch
        yield replace(batch, stored=torch.int8)
    for blocks, tile in product(((8, 16), (12, 48), (64, 64)), ((16, 16), (64, 64))):
        batch = Batch(torch.float16, lens=lens, blocks=blocks, tile=tile)
        yield batch
        yield replace(batch, window=25)
    yield Batch(torch.bfloat16, heads=(8, 2), head_dim=128, lens=((300, 150),), tile=(128, 64))


def case_of(batch: Batch) -> OpCase:
    is_plain = batch.soft_cap is None and batch.blocks is None and batch.cache_dtype not in BYTES
    return OpCase(
        op="attention_prefill",
        name=batch.name,
        module="kernels.attention_prefill",
        dtype=batch.dtype,
        make=partial(make_inputs, batch=batch),
        run=_run,
        reference=_reference,
        other=_sdpa if is_plain else None,
    )


def make_inputs(generator: torch.Generator, device: torch.device, batch: Batch) -> Inputs:
    num_heads, num_kv_heads = batch.heads
    num_queries = [queries for _, queries in batch.lens]
    borders = torch.tensor([0, *num_queries]).cumsum(0).to(torch.int32)
    num_tokens = sum(num_queries) + NUM_PADDING
    width = num_heads + 2 * num_kv_heads if batch.is_view else num_heads
    query = PEAKED * torch.randn(num_tokens, width, batch.head_dim, generator=generator)
    cache = paged_cache(
        batch.seen,
        generator,
        num_kv_heads=num_kv_heads,
        block_size=batch.block_size,
        head_dim=batch.head_dim,
        dtype=batch.cache_dtype,
    )
    tensors = {
        "query": query.to(batch.dtype)[:, :num_heads],
        "cu_query_lens": borders,
        "seq_lens": torch.tensor(batch.seq_lens, dtype=torch.int32).clamp(min=0),
        **cache,
        **({} if batch.blocks is None else _lists(batch, *batch.blocks, generator)),
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()} | {
        "scale": batch.head_dim**-0.5,
        "max_query_len": max(num_queries),
        "window": batch.window,
        "soft_cap": batch.soft_cap,
        "blocks": batch.blocks,
        "tile": batch.tile,
    }


def _lists(batch: Batch, query_block: int, key_block: int, generator: torch.Generator) -> dict[str, Tensor]:
    """For each block of queries some of the sequence's blocks of keys in any order, some of them full; behind
    them what must not be read."""
    num_query_blocks = -(-max(queries for _, queries in batch.lens) // query_block)
    most = -(-max(batch.seq_lens) // key_block)
    shape = (len(batch.lens), num_query_blocks)
    num_visits = torch.zeros(shape, dtype=torch.int32)
    key_blocks = torch.full((*shape, most), 10**6, dtype=torch.int32)
    for sequence, query in product(*map(range, shape)):
        there = -(-batch.seq_lens[sequence] // key_block)
        count = int(torch.randint(min(1, there), there + 1, (), generator=generator))
        num_visits[sequence, query] = count
        key_blocks[sequence, query, :count] = torch.randperm(there, generator=generator)[:count]
    is_full = torch.rand(*shape, most, generator=generator) < 0.4
    return {"num_visits": num_visits, "key_blocks": key_blocks, "is_full": is_full}


def arguments(batch: Batch, generator: torch.Generator, device: torch.device) -> dict[str, Any]:
    """Of `paged_prefill`."""
    return _arguments(make_inputs(generator, device, batch))


def _arguments(inputs: Inputs) -> dict[str, Any]:
    num_rows, num_keys = inputs["tile"]
    return _common(inputs) | {
        "max_query_len": inputs["max_query_len"],
        "block_lists": _block_lists(inputs),
        "tile": AttentionTile(num_rows, num_keys, num_warps=4, num_stages=2),
    }


def _common(inputs: Inputs) -> dict[str, Any]:
    """What the op and its reference are both told."""
    names = ("query", "k_cache", "v_cache", "block_table", "cu_query_lens", "seq_lens", "scale")
    given = {name: inputs[name] for name in (*names, "window", "soft_cap")}
    return given | {name: inputs.get(name) for name in ("k_scale", "v_scale")}


def _block_lists(inputs: Inputs) -> BlockLists | None:
    if inputs["blocks"] is None:
        return None
    queries, keys = inputs["blocks"]
    return BlockLists(queries, keys, inputs["num_visits"], inputs["key_blocks"], inputs["is_full"])


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    return (module.paged_prefill(**_arguments(inputs)),)


def _reference(inputs: Inputs) -> Outputs:
    return (reference_attention.paged_attention(**_common(inputs), block_mask=_block_lists(inputs)),)


def _sdpa(inputs: Inputs) -> Outputs:
    return (sdpa(inputs, inputs["cu_query_lens"]),)
