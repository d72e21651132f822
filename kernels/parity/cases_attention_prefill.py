"""Cases of `attention_prefill`: blocks in any order, and NaN wherever nothing is to be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import reference_attention
from kernels.attention_tile import AttentionTile
from kernels.block_lists import BlockLists
from kernels.parity.case import Inputs, OpCase, Outputs

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BYTES = (torch.int8, torch.float8_e4m3fn)
PEAKED = 3.0
"""Queries are this much larger than keys, so that a row's weights differ by orders of magnitude."""
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
    def name(self) -> str:
        parts = [_name(self.dtype), f"GQA {self.heads[0]}/{self.heads[1]} D={self.head_dim}"]
        parts += [f"B={self.block_size} lens={[f'{b}+{n}' for b, n in self.lens]}"]
        parts += [f"KV {_name(self.stored)}"] if self.stored is not None else []
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
    table = _block_table(batch, generator)
    used = _used(batch, table)
    shape = (len(used), num_kv_heads, batch.block_size, batch.head_dim)
    tensors = {
        "query": query.to(batch.dtype)[:, :num_heads],
        "block_table": table,
        "cu_query_lens": borders,
        "seq_lens": torch.tensor(batch.seq_lens, dtype=torch.int32).clamp(min=0),
        **_cache("k", shape, used, batch.cache_dtype, generator),
        **_cache("v", shape, used, batch.cache_dtype, generator),
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


def _first_seen(batch: Batch, before: int) -> int:
    """Lists may show a query what lies behind its window."""
    has_edge = batch.window is not None and batch.blocks is None
    return max(before - batch.window + 1, 0) if has_edge and batch.window is not None else 0


def _block_table(batch: Batch, generator: torch.Generator) -> Tensor:
    """int32 [S, max_blocks]; 0 behind the sequence's end, and where nobody sees a key of the block."""
    counts = [-(-seq_len // batch.block_size) for seq_len in batch.seq_lens]
    free = (1 + torch.randperm(sum(counts), generator=generator)).tolist()
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for sequence, (before, _) in enumerate(batch.lens):
        for block in range(_first_seen(batch, before) // batch.block_size, counts[sequence]):
            table[sequence, block] = free.pop()
    return table


def _used(batch: Batch, table: Tensor) -> Tensor:
    """Which slots hold a token that a query sees: bool [N, B]."""
    used = torch.zeros(int(table.max()) + 1, batch.block_size, dtype=torch.bool)
    for sequence, (before, queries) in enumerate(batch.lens):
        for position in range(_first_seen(batch, before), before + queries):
            used[table[sequence, position // batch.block_size], position % batch.block_size] = True
    return used


def _cache(
    name: str,
    shape: tuple[int, int, int, int],
    used: Tensor,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """A cache [N, KVH, B, D]; of bytes with scales, no two alike. What is unused is NaN."""
    values = torch.randn(shape, generator=generator)
    unused = ~used[:, None].expand(shape[:3])
    if dtype not in BYTES:
        return {f"{name}_cache": values.to(dtype).masked_fill(unused[..., None], float("nan"))}
    scale = (0.5 + torch.rand(shape[:3], generator=generator)) / 32
    numbers = (32 * values).clamp(-127, 127)
    numbers = numbers.round() if dtype == torch.int8 else numbers
    return {
        f"{name}_cache": numbers.to(dtype),
        f"{name}_scale": scale.masked_fill(unused, float("nan")),
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
    """torch's in float64, sequence by sequence, with its keys gathered."""
    output = torch.zeros_like(inputs["query"], dtype=torch.float64)
    borders = inputs["cu_query_lens"].tolist()
    for sequence, seq_len in enumerate(inputs["seq_lens"].tolist()):
        rows = slice(borders[sequence], borders[sequence + 1])
        if seq_len == 0:
            continue
        blocks = inputs["block_table"][sequence]
        mask = reference_attention.visible(rows.stop - rows.start, seq_len, inputs["window"])
        mask = mask.to(output.device)
        key, value = (
            inputs[name][blocks].transpose(0, 1).flatten(1, 2)[:, :seq_len].double()
            for name in ("k_cache", "v_cache")
        )
        unseen = ~mask.any(dim=0)[:, None]
        attended = F.scaled_dot_product_attention(
            inputs["query"][rows].double().transpose(0, 1),
            key.masked_fill(unseen, 0.0),
            value.masked_fill(unseen, 0.0),
            attn_mask=mask,
            scale=inputs["scale"],
            enable_gqa=True,
        )
        output[rows] = attended.transpose(0, 1)
    return (output,)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
