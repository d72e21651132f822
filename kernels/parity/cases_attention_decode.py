"""Cases of `attention_decode`: blocks in any order, and NaN wherever nothing is to be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import ModuleType

import torch
from torch import Tensor

from kernels import reference_attention
from kernels.attention_tile import AttentionTile
from kernels.dtype_name import dtype_name
from kernels.parity.case import BYTES, DTYPES, Inputs, OpCase, Outputs
from kernels.parity.paged_attention import PEAKED, Seen, paged_cache, sdpa


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: its shapes, and how it is cut."""

    dtype: torch.dtype
    heads: tuple[int, int] = (6, 2)
    """H, KVH."""
    head_dim: int = 64
    block_size: int = 16
    lens: tuple[int, ...] = (16, 17, 0, 70)
    stored: torch.dtype | None = None
    """None: as `dtype`."""
    window: int | None = None
    soft_cap: float | None = None
    num_splits: int = 1
    num_keys: int = 32
    value_size: float = 1.0
    is_view: bool = False
    """Queries lie between the keys and values of one projection."""

    @property
    def cache_dtype(self) -> torch.dtype:
        return self.stored or self.dtype

    @property
    def seen(self) -> list[Seen]:
        return [(max(seq_len - (self.window or seq_len), 0), seq_len) for seq_len in self.lens]

    @property
    def name(self) -> str:
        parts = [dtype_name(self.dtype), f"GQA {self.heads[0]}/{self.heads[1]} D={self.head_dim}"]
        parts += [f"B={self.block_size} lens={list(self.lens)}"]
        parts += [f"KV {dtype_name(self.stored)}"] if self.stored is not None else []
        parts += [f"window={self.window}"] if self.window is not None else []
        parts += [f"soft_cap={self.soft_cap}"] if self.soft_cap is not None else []
        parts += [f"splits={self.num_splits} keys={self.num_keys}"] + ["a view"] * self.is_view
        parts += [f"values of {self.value_size}"] if self.value_size != 1.0 else []
        return " ".join(parts)


def cases(*, whole: bool) -> Iterator[OpCase]:
    yield from map(_case, dict.fromkeys([*_quick(), *_whole()] if whole else _quick()))


def _quick() -> Iterator[Batch]:
    for dtype in DTYPES:
        yield Batch(dtype)
    yield Batch(torch.float32, num_splits=3)
    plain = Batch(torch.float16, lens=(1, 33))
    for head_dim in (80, 96, 128, 256):
        yield replace(plain, head_dim=head_dim)
    for heads in ((2, 2), (20, 1), (70, 1)):
        yield replace(plain, heads=heads)
    yield replace(plain, block_size=4, num_splits=2)
    yield replace(plain, window=1)
    yield Batch(torch.float32, lens=(5, 70), window=20, num_splits=3, num_keys=16)
    yield Batch(torch.float32, lens=(5, 70), soft_cap=5.0)
    yield Batch(torch.bfloat16, lens=(5, 70), window=33, soft_cap=5.0, num_splits=2)
    for wide, stored in product(DTYPES, BYTES):
        yield Batch(wide, (3, 1), lens=(2, 70), stored=stored, num_splits=2)
    yield replace(plain, stored=torch.int8, value_size=1e-4)
    yield replace(plain, stored=torch.int8, head_dim=80, window=20)
    yield replace(plain, stored=torch.bfloat16, dtype=torch.float32)
    yield replace(plain, is_view=True)


def _whole() -> Iterator[Batch]:
    lens = (3, 0, 64, 65, 200, 1)
    for dtype, head_dim, num_splits in product(DTYPES, (64, 80, 96, 128, 256), (1, 2, 7)):
        yield Batch(dtype, head_dim=head_dim, lens=lens, num_splits=num_splits, num_keys=64)
    for wide, narrow, head_dim in product(DTYPES, BYTES, (64, 80, 96, 128, 256)):
        yield Batch(wide, head_dim=head_dim, lens=lens, stored=narrow, num_splits=3)
    groups = ((1, 1), (8, 8), (32, 8), (16, 1), (17, 1), (71, 1), (132, 2))
    for heads, block_size in product(groups, (1, 16, 24)):
        yield Batch(torch.float16, heads, block_size=block_size, lens=(50, 7), num_splits=2)
    for window, soft_cap, stored in product((1, 16, 31, 32, 33, 500), (None, 30.0), (None, torch.int8)):
        batch = Batch(torch.float16, lens=lens, window=window, soft_cap=soft_cap, stored=stored)
        yield batch
        yield replace(batch, num_splits=4, num_keys=16)
    yield Batch(torch.float16, lens=(1500,), num_splits=33, num_keys=16)


def _case(batch: Batch) -> OpCase:
    is_plain = batch.window is None and batch.soft_cap is None and batch.cache_dtype not in BYTES
    return OpCase(
        op="attention_decode",
        name=batch.name,
        module="kernels.attention_decode",
        dtype=batch.dtype,
        make=partial(make_inputs, batch=batch),
        run=_run,
        reference=_reference,
        other=_sdpa if is_plain else None,
    )


def make_inputs(generator: torch.Generator, device: torch.device, batch: Batch) -> Inputs:
    (num_heads, num_kv_heads), head_dim = batch.heads, batch.head_dim
    width = num_heads + 2 * num_kv_heads if batch.is_view else num_heads
    query = PEAKED * torch.randn(len(batch.lens), width, head_dim, generator=generator)
    cache = paged_cache(
        batch.seen,
        generator,
        num_kv_heads=num_kv_heads,
        block_size=batch.block_size,
        head_dim=head_dim,
        dtype=batch.cache_dtype,
        value_size=batch.value_size,
    )
    tensors = {
        "query": query.to(batch.dtype)[:, :num_heads],
        "seq_lens": torch.tensor(batch.lens, dtype=torch.int32),
        **cache,
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()} | {
        "scale": head_dim**-0.5,
        "window": batch.window,
        "soft_cap": batch.soft_cap,
        "num_splits": batch.num_splits,
        "num_keys": batch.num_keys,
    }


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    given = {name: value for name, value in inputs.items() if name != "num_keys"}
    tile = AttentionTile(num_rows=64, num_keys=inputs["num_keys"], num_warps=4, num_stages=2)
    return (module.paged_decode(**given, tile=tile),)


def _reference(inputs: Inputs) -> Outputs:
    given = {name: value for name, value in inputs.items() if name not in ("num_keys", "num_splits")}
    return (reference_attention.paged_attention(cu_query_lens=_one_each(inputs), **given),)


def _sdpa(inputs: Inputs) -> Outputs:
    return (sdpa(inputs, _one_each(inputs)),)


def _one_each(inputs: Inputs) -> Tensor:
    return torch.arange(len(inputs["seq_lens"]) + 1, dtype=torch.int32)
