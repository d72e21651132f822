"""Every byte at every place, by the assembly that a GPU runs and by the arithmetic in its place elsewhere."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import byte_pairs
from tests.kernels import ptx_machine

ASSEMBLY = {
    (torch.int8, torch.float16): byte_pairs.INT8_TO_FLOAT16,
    (torch.int8, torch.bfloat16): byte_pairs.INT8_TO_BFLOAT16,
    (torch.float8_e4m3fn, torch.float16): byte_pairs.FLOAT8_TO_FLOAT16,
    (torch.float8_e4m3fn, torch.bfloat16): byte_pairs.FLOAT8_TO_BFLOAT16,
}
BYTES = torch.arange(256)
IS_NAN = (BYTES & 0x7F) == 0x7F
"""Of float8."""


def numbers(stored: torch.dtype) -> Tensor:
    """What each byte stands for."""
    found = BYTES.to(torch.uint8).view(stored).double()
    return found if stored == torch.int8 else torch.where(IS_NAN, (1 - 2 * (BYTES >> 7)) * 480.0, found)


@pytest.mark.parametrize(("stored", "dtype"), list(ASSEMBLY))
def test_the_assembly_converts_every_byte_at_each_of_four_places(
    stored: torch.dtype, dtype: torch.dtype
) -> None:
    # Two bytes that differ are neighbours in every word, so that none can spill over unseen.
    words = BYTES | (BYTES ^ 0xFF) << 8 | (BYTES + 1 & 0xFF) << 16 | (BYTES + 0x80 & 0xFF) << 24
    even, odd = ptx_machine.run(ASSEMBLY[stored, dtype].value, words, num_results=2)
    expected = numbers(stored)
    for place, found in enumerate((even, odd)):
        for half in range(2):
            byte = words >> 8 * (place + 2 * half) & 0xFF
            assert torch.equal(ptx_machine.halves(found, dtype)[:, half].double(), expected[byte])


@triton.jit
def _convert(pairs_ptr, even_ptr, odd_ptr, KIND: tl.constexpr, DTYPE: tl.constexpr):
    place = tl.arange(0, 256)
    even, odd = byte_pairs.even_and_odd(tl.load(pairs_ptr + place), KIND, DTYPE)
    tl.store(even_ptr + place, even.to(tl.float32))
    tl.store(odd_ptr + place, odd.to(tl.float32))


@pytest.mark.parametrize("stored", byte_pairs.KINDS)
@pytest.mark.parametrize("dtype", [tl.float32, tl.float16, tl.bfloat16], ids=str)
def test_a_tile_has_its_even_and_its_odd_columns(stored: torch.dtype, dtype: tl.dtype) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pairs = torch.stack((BYTES, BYTES.flip(0)), dim=1).to(torch.uint8).view(torch.int16).flatten().to(device)
    even, odd = torch.empty(2, 256, device=device)
    _convert[(1,)](pairs, even, odd, byte_pairs.KINDS[stored], dtype)
    assert torch.equal(even.double().cpu(), numbers(stored))
    assert torch.equal(odd.double().cpu(), numbers(stored).flip(0))
