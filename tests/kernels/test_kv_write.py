"""What parity does not say of the write into the cache: rows that are not finite, rounding, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels import reference_kv_write
from kernels.kv_write import kv_write

NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM = 3, 2, 4, 8
SHAPE = (NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
QUANTISED = [torch.int8, torch.float8_e4m3fn]


def written(x: Tensor, stored: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes and scales of x [T, KVH, D] as keys, from slot 4 on: [T, KVH, D], [T, KVH]."""
    caches = [torch.zeros(SHAPE, dtype=stored) for _ in "kv"]
    scales = [torch.zeros(SHAPE[:3]) for _ in "kv"]
    kv_write(x, x, *caches, torch.arange(BLOCK_SIZE, BLOCK_SIZE + len(x)), *scales)
    assert torch.equal(caches[0].view(torch.uint8), caches[1].view(torch.uint8))
    of_slots = caches[0].transpose(1, 2).flatten(0, 1), scales[0].transpose(1, 2).flatten(0, 1)
    codes, slot_scales = (slots[BLOCK_SIZE : BLOCK_SIZE + len(x)] for slots in of_slots)
    return codes, slot_scales


@pytest.mark.parametrize("stored", QUANTISED)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_reads_so_and_no_other_does(stored: torch.dtype, value: float) -> None:
    x = torch.randn(3, NUM_KV_HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    x[1, 0, 5] = value
    codes, scales = written(x, stored)
    read = codes.float() * scales[..., None]
    is_lost = ~read.isfinite().all(dim=-1)
    assert is_lost.tolist() == [[False, False], [True, False], [False, False]]


def test_int8_reads_back_within_half_a_step() -> None:
    x = torch.randn(8, NUM_KV_HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    codes, scales = written(x, torch.int8)
    assert ((codes.float() * scales[..., None] - x).abs() <= 0.5001 * scales[..., None]).all()
    assert codes.abs().amax(dim=-1).unique().tolist() == [127]


def test_fp8_is_rounded_as_torch_rounds() -> None:
    """Every value of e4m3, what lies halfway between two, and a little to both sides of that."""
    exact = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halfway = (exact[:-1] + exact[1:]) / 2
    values = torch.cat((exact, halfway, halfway * (1 + 1e-6), halfway * (1 - 1e-6)))
    values = torch.cat((values, -values, torch.tensor([448.0])))  # the largest: the scale is 1
    rows = torch.nn.functional.pad(values, (0, -len(values) % (HEAD_DIM - 1))).reshape(-1, 1, HEAD_DIM - 1)
    x = torch.nn.functional.pad(rows, (1, 0), value=448.0).expand(-1, NUM_KV_HEADS, -1).contiguous()
    for some in x.split(2 * BLOCK_SIZE):
        codes, scales = written(some, torch.float8_e4m3fn)
        assert scales.unique().tolist() == [1.0]
        assert torch.equal(codes.float(), some.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("stored", QUANTISED)
def test_the_reference_reads_back_within_half_a_step(stored: torch.dtype) -> None:
    x = torch.randn(64, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    codes, scales = reference_kv_write.quantize(x, stored)
    half_a_step = scales[:, None] / 2 if stored == torch.int8 else x.abs() / 16 + 2.0**-10 * scales[:, None]
    assert ((codes.float() * scales[:, None] - x).abs() <= 1.0001 * half_a_step).all()


def test_int8_rounds_ties_to_even() -> None:
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.4999]).expand(1, NUM_KV_HEADS, HEAD_DIM)
    codes, scales = written(x.contiguous(), torch.int8)
    assert scales.unique().tolist() == [1.0]
    assert codes[0, 0].tolist() == [127, 0, 2, 2, 0, -2, -2, 3]


@pytest.mark.parametrize("stored", [torch.float16, *QUANTISED])
@pytest.mark.parametrize("given", ["none", "both", "one"])
def test_scales_come_with_a_quantised_cache_and_with_no_other(stored: torch.dtype, given: str) -> None:
    x = torch.ones(1, NUM_KV_HEADS, HEAD_DIM)
    caches = [torch.zeros(SHAPE, dtype=stored) for _ in "kv"]
    scales = [torch.zeros(SHAPE[:3]) for _ in range({"none": 0, "both": 2, "one": 1}[given])]
    if given == ("none" if stored == torch.float16 else "both"):
        kv_write(x, x, *caches, torch.tensor([4]), *scales)
        return
    with pytest.raises(ValueError, match="scales"):
        kv_write(x, x, *caches, torch.tensor([4]), *scales)
