"""Cases of `attention_flash`: output, sums and all three gradients, against float64 and torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import ModuleType

import torch
import torch.nn.functional as F

from kernels import reference_flash
from kernels.attention_tile import AttentionTile
from kernels.parity.case import DTYPES, Inputs, OpCase, Outputs

PEAKED = 3.0
"""Queries are this much larger than keys, so that a row's weights differ by orders of magnitude."""


@dataclass(frozen=True, slots=True)
class Batch:
    dtype: torch.dtype
    causal: bool
    heads: tuple[int, int] = (2, 1)
    """H, KVH."""
    head_dim: int = 64
    lens: tuple[int, int] = (9, 23)
    """M, L."""
    batch: int = 1
    tile: tuple[int, int] = (16, 16)
    """Queries, keys: forward and backward."""

    @property
    def name(self) -> str:
        mask = "causal" if self.causal else "full"
        heads = f"GQA {self.heads[0]}/{self.heads[1]} D={self.head_dim}"
        shape = f"B={self.batch} M={self.lens[0]} L={self.lens[1]} tile={self.tile[0]}x{self.tile[1]}"
        return f"{str(self.dtype).removeprefix('torch.')} {mask} {heads} {shape}"


def cases(*, whole: bool) -> Iterator[OpCase]:
    yield from map(_case, dict.fromkeys([*_quick(), *_whole()] if whole else _quick()))


def _quick() -> Iterator[Batch]:
    yield Batch(torch.float32, causal=True)
    yield Batch(torch.float32, causal=False, heads=(2, 2), batch=2, lens=(9, 20))
    yield Batch(torch.float16, causal=True, head_dim=80, lens=(20, 20))
    yield Batch(torch.float16, causal=False, head_dim=96, lens=(20, 5))
    yield Batch(torch.bfloat16, causal=True, tile=(16, 32), lens=(9, 40))


def _whole() -> Iterator[Batch]:
    for dtype, causal, head_dim in product(DTYPES, (False, True), (64, 80, 96, 128, 256)):
        batch = Batch(dtype, causal, heads=(4, 2), head_dim=head_dim, batch=2, lens=(50, 77))
        yield replace(batch, tile=(32, 16))
    # Not one query over one or two keys: its gradients are differences of almost equal numbers, all rounding.
    for causal, heads, lens in product(
        (False, True), ((1, 1), (6, 2), (5, 1)), ((9, 23), (1, 40), (31, 32), (64, 64))
    ):
        yield Batch(torch.float16, causal, heads=heads, lens=lens, tile=(16, 32))
    yield Batch(torch.float16, causal=False, lens=(70, 3))
    yield Batch(torch.bfloat16, causal=True, lens=(200, 200), tile=(64, 64))


def _case(batch: Batch) -> OpCase:
    return OpCase(
        op="attention_flash",
        name=batch.name,
        module="kernels.attention_flash",
        dtype=batch.dtype,
        make=partial(make_inputs, batch=batch),
        run=_run,
        reference=_reference,
        other=_sdpa,
    )


def make_inputs(generator: torch.Generator, device: torch.device, batch: Batch) -> Inputs:
    (num_heads, num_kv_heads), (num_queries, num_keys) = batch.heads, batch.lens
    of_queries = (batch.batch, num_heads, num_queries, batch.head_dim)
    of_keys = (batch.batch, num_kv_heads, num_keys, batch.head_dim)
    return {
        "q": (PEAKED * torch.randn(of_queries, generator=generator)).to(device, batch.dtype),
        "k": torch.randn(of_keys, generator=generator).to(device, batch.dtype),
        "v": torch.randn(of_keys, generator=generator).to(device, batch.dtype),
        "d_out": torch.randn(of_queries, generator=generator).to(device, batch.dtype),
        "scale": batch.head_dim**-0.5,
        "causal": batch.causal,
        "tile": batch.tile,
    }


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    q, k, v, d_out, scale = (inputs[name] for name in ("q", "k", "v", "d_out", "scale"))
    num_rows, num_keys = inputs["tile"]
    tile = AttentionTile(num_rows, num_keys, num_warps=4, num_stages=2)
    how = {"causal": inputs["causal"], "tile": tile}
    out, lse = module.flash_forward(q, k, v, scale, **how)
    return out, lse, *module.flash_backward(d_out, q, k, v, out, lse, scale, **how)


def _reference(inputs: Inputs) -> Outputs:
    q, k, v, d_out, scale = (inputs[name] for name in ("q", "k", "v", "d_out", "scale"))
    forward = reference_flash.attention(q, k, v, scale, causal=inputs["causal"])
    return *forward, *reference_flash.gradients(d_out, q, k, v, scale, causal=inputs["causal"])


def _sdpa(inputs: Inputs) -> Outputs:
    """torch's in float64. It gives no sums: those are the reference's."""
    q, k, v = (inputs[name].double().requires_grad_() for name in ("q", "k", "v"))
    mask = reference_flash.visible(q.shape[2], k.shape[2]).to(q.device) if inputs["causal"] else None
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=inputs["scale"], enable_gqa=True)
    gradients = torch.autograd.grad(out, (q, k, v), inputs["d_out"].double())
    return out.detach(), _reference(inputs)[1], *gradients
