"""What parity does not say of products with quantised weights: buffers, splits, every byte, refusals."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import weight_bits
from kernels.matmul_quant import matmul_quant, multiply_constants, workspace_numel
from kernels.matmul_tile import MatmulTile, choose_num_splits, quant_tile, w8a8_tile
from kernels.matmul_w8a8 import matmul_w8a8
from kernels.quant_layout import concat, from_parts, quantize_int4, quantize_int8
from kernels.reference_matmul_quant import dequantized
from tests.kernels import ptx_machine

BYTES = torch.arange(256)
HALVES = (torch.float16, torch.bfloat16)
CPU = torch.device("cpu")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words() -> Tensor:
    """Every byte at each of four places, beside bytes that differ, so that none can spill over unseen."""
    return BYTES | (BYTES ^ 0xFF) << 8 | (BYTES + 1 & 0xFF) << 16 | (BYTES + 0x80 & 0xFF) << 24


@pytest.mark.parametrize("dtype", HALVES)
def test_the_assembly_widens_every_byte_at_each_of_four_places(dtype: torch.dtype) -> None:
    text = weight_bits.INT8_TO_FLOAT16 if dtype == torch.float16 else weight_bits.INT8_TO_BFLOAT16
    results = ptx_machine.run(text.value, words(), num_results=2)
    found = torch.cat([ptx_machine.halves(result, dtype) for result in results], dim=1)
    for place in range(4):
        expected = (words() >> 8 * place & 0xFF).to(torch.uint8).view(torch.int8)
        assert torch.equal(found[:, place].double(), expected.double())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("middle", [0, 8])
def test_the_assembly_widens_every_four_bits(dtype: torch.dtype, middle: int) -> None:
    name = f"{'CENTRED_' if middle else ''}INT4_TO_{str(dtype).removeprefix('torch.').upper()}"
    results = ptx_machine.run(getattr(weight_bits, name).value, words(), num_results=4)
    found = torch.cat([ptx_machine.halves(result, dtype) for result in results], dim=1)
    for place in range(4):
        byte = words() >> 8 * place & 0xFF
        assert torch.equal(found[:, place].double(), (byte & 0xF).double() - middle)
        assert torch.equal(found[:, 4 + place].double(), (byte >> 4).double() - middle)


@triton.jit
def _widen(bytes_ptr, whole_ptr, low_ptr, high_ptr, DTYPE: tl.constexpr, IS_CENTRED: tl.constexpr):
    place = tl.arange(0, 256)
    numbers = tl.load(bytes_ptr + place)
    tl.store(
        whole_ptr + place, weight_bits.from_int8(numbers.to(tl.int8, bitcast=True), DTYPE).to(tl.float32)
    )
    low, high = weight_bits.from_int4(numbers, DTYPE, IS_CENTRED)
    tl.store(low_ptr + place, low.to(tl.float32))
    tl.store(high_ptr + place, high.to(tl.float32))


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("dtype", [tl.float32, tl.float16, tl.bfloat16], ids=str)
def test_a_tile_is_widened(dtype: tl.dtype, is_centred: bool) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    numbers = BYTES.to(torch.uint8).to(device)
    whole, low, high = torch.empty(3, 256, device=device)
    _widen[(1,)](numbers, whole, low, high, dtype, is_centred)
    middle = 8 if is_centred else 0
    assert torch.equal(whole.cpu(), numbers.cpu().view(torch.int8).float())
    assert torch.equal(low.cpu(), (BYTES % 16 - middle).float())
    assert torch.equal(high.cpu(), (BYTES // 16 - middle).float())


def test_results_come_in_the_buffers_that_were_given() -> None:
    x, weight = randn(2, 256), quantize_int4(randn(20, 256))
    wide = torch.full((2, 24), 7.0)
    workspace = torch.full((workspace_numel(2, 20, 4) + 1,), 7.0)
    out = wide[:, :20]
    assert matmul_quant(x, weight, out=out, workspace=workspace, num_splits=4) is out
    assert torch.allclose(out, matmul_quant(x, weight, num_splits=1), atol=1e-5)
    assert wide[:, 20:].eq(7.0).all()
    assert workspace[-1] == 7.0


def test_codes_come_in_the_buffers_that_were_given() -> None:
    x, weight = torch.tensor([[1.0, -127.0], [0.0, 0.0]]), quantize_int8(randn(3, 2))
    codes, scales = torch.empty(2, 2, dtype=torch.int8), torch.empty(2)
    out = torch.empty(2, 3)
    assert matmul_w8a8(x, weight, out=out, codes=codes, code_scales=scales) is out
    assert codes.tolist() == [[1, -127], [0, 0]]
    assert scales.tolist() == [1.0, 0.0]


def test_the_same_splits_give_the_same_bits() -> None:
    x, weight = randn(2, 256), quantize_int4(randn(20, 256))
    assert torch.equal(*(matmul_quant(x, weight, num_splits=4) for _ in range(2)))


def test_more_splits_than_turns_are_zeros() -> None:
    x, weight = randn(2, 64), quantize_int8(randn(5, 64), 32)
    assert torch.allclose(
        matmul_quant(x, weight, num_splits=7), x @ dequantized(weight).float().t(), atol=1e-5
    )


def test_stacked_weights_give_each_one_s_outputs() -> None:
    x, parts = randn(2, 128), [quantize_int4(randn(rows, 128, seed=rows)) for rows in (24, 8, 8)]
    apart = torch.cat([matmul_quant(x, part) for part in parts], dim=1)
    assert torch.equal(matmul_quant(x, concat(parts)), apart)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_token_that_is_not_finite_shows_and_the_others_are_as_they_were(bad: float) -> None:
    x, weight = randn(3, 64), quantize_int8(randn(5, 64))
    for multiply in (matmul_quant, matmul_w8a8):
        expected = multiply(x, weight)
        spoilt = x.clone()
        spoilt[1, 3] = bad
        found = multiply(spoilt, weight)
        assert not found[1].isfinite().any()
        assert torch.equal(found[[0, 2]], expected[[0, 2]])


def test_no_tokens_and_no_outputs_are_no_trouble() -> None:
    assert matmul_quant(randn(0, 64), quantize_int4(randn(5, 64))).shape == (0, 5)
    assert matmul_w8a8(randn(0, 64), quantize_int8(randn(5, 64))).shape == (0, 5)
    none = from_parts(torch.zeros(0, 64, dtype=torch.int8), torch.zeros(0, 1), None, 8, 64)
    assert matmul_quant(randn(2, 64), none).shape == (2, 0)


@pytest.mark.parametrize(
    ("group", "num_bits", "columns", "expected"),
    [
        (4096, 8, 4096, 128),
        (64, 8, 4096, 64),
        (64, 4, 4096, 64),
        (64, 4, 576, 32),
        (32, 4, 96, 16),
        (96, 4, 96, 128),
    ],
)
def test_a_turn_stays_in_its_group_or_in_one_of_each_half(
    group: int, num_bits: int, columns: int, expected: int
) -> None:
    scales = torch.ones(1, columns // group)
    weight = from_parts(torch.zeros(1, columns, dtype=torch.uint8), scales, None, num_bits, group)
    tile = MatmulTile(num_rows=8, num_outputs=64, num_bytes=128, num_warps=2, num_stages=4)
    assert multiply_constants(weight, tile)["BYTES"] == expected


@pytest.mark.parametrize(
    ("programs", "turns", "splits"), [(64, 32, 8), (64, 4, 2), (64, 3, 1), (528, 32, 1), (1, 1000, 32)]
)
def test_k_is_split_to_fill_the_device_two_turns_each(programs: int, turns: int, splits: int) -> None:
    assert choose_num_splits(programs, turns, CPU) == splits


def test_tiles_grow_with_the_tokens() -> None:
    for dtype, num_bits in ((torch.float16, 8), (torch.bfloat16, 4)):
        rows = [quant_tile(num, dtype, num_bits).num_rows for num in (1, 8, 9, 16, 17, 64, 65, 4096)]
        assert rows == [8, 8, 16, 16, 64, 64, 128, 128]
    assert quant_tile(4096, torch.float32, 8).num_rows == 16
    assert [w8a8_tile(num).num_rows for num in (1, 16, 17, 64, 65)] == [16, 16, 64, 64, 128]


def test_what_does_not_fit_is_named() -> None:
    x, weight = randn(2, 64), quantize_int8(randn(5, 64))
    with pytest.raises(ValueError, match="rows of 32 for a weight of 64 columns"):
        matmul_quant(x[:, :32], weight)
    with pytest.raises(ValueError, match="must lie side by side"):
        matmul_quant(x.t().contiguous().t(), weight)
    with pytest.raises(ValueError, match=r"out of \[2, 4\], not \[2, 5\]"):
        matmul_quant(x, weight, out=torch.empty(2, 4))
    with pytest.raises(ValueError, match=r"a bias of \[4\] for 5 outputs"):
        matmul_quant(x, weight, torch.ones(4))
    with pytest.raises(ValueError, match="0 splits"):
        matmul_quant(x, weight, num_splits=0)
    with pytest.raises(ValueError, match="20 numbers of float32"):
        matmul_quant(x, weight, num_splits=2, workspace=torch.empty(19))


def test_both_in_8_bits_wants_a_scale_a_row() -> None:
    x = randn(2, 64)
    for weight in (quantize_int4(randn(5, 64)), quantize_int8(randn(5, 64), 32)):
        with pytest.raises(ValueError, match="one scale a row"):
            matmul_w8a8(x, weight)
    weight = quantize_int8(randn(5, 64))
    with pytest.raises(ValueError, match="rows of 32"):
        matmul_w8a8(x[:, :32], weight)
    with pytest.raises(ValueError, match=r"codes must be \[T, K\]"):
        matmul_w8a8(x, weight, codes=torch.empty(1, 64, dtype=torch.int8))
    wide = from_parts(torch.zeros(1, 131073, dtype=torch.int8), torch.ones(1, 1), None, 8, 131073)
    with pytest.raises(ValueError, match="beyond 131072 a sum may not fit"):
        matmul_w8a8(torch.zeros(1, 131073), wide)
