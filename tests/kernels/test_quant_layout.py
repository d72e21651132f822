"""The layout of quantised weights: exact inverses, errors within half a step, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import quant_layout
from kernels.quant_layout import (
    QuantizedWeight,
    concat,
    from_parts,
    pack_int4,
    quantize_int4,
    quantize_int8,
    unpack_int4,
)

HALVES = (torch.float16, torch.bfloat16)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def errors_in_steps(weight: Tensor, made: QuantizedWeight) -> Tensor:
    """[N, K] error / scale; where the scale is 0 there must be no error."""
    error = (made.dequantize(torch.float64) - weight.double()).view(len(weight), -1, made.group_size)
    scales = made.scales.double()[..., None].expand_as(error)
    assert not error[scales == 0.0].any()
    return torch.where(scales > 0.0, error / scales, 0.0).flatten(1)


def test_bytes_hold_two_halves_of_a_row() -> None:
    q = torch.tensor([[1, 2, 3, 4], [15, 0, 0, 15]], dtype=torch.uint8)
    assert pack_int4(q).tolist() == [[0x31, 0x42], [0x0F, 0xF0]]


def test_packing_has_an_exact_inverse() -> None:
    every_byte = torch.arange(256, dtype=torch.uint8).view(4, 64)
    assert torch.equal(pack_int4(unpack_int4(every_byte)), every_byte)


@pytest.mark.parametrize("group", [None, 32, 64, 128])
@pytest.mark.parametrize("scale_dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_int8_is_right_to_half_a_step(group: int | None, scale_dtype: torch.dtype, size: float) -> None:
    weight = size * randn(7, 256)
    made = quantize_int8(weight, group, scale_dtype)
    assert errors_in_steps(weight, made).abs().max() <= 0.5 + 1e-5
    assert made.scales.dtype == scale_dtype
    assert made.offsets is None
    assert made.shape == (7, 256)
    assert made.group_size == (group or 256)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("scale_dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("mean", [0.0, 5.0, -5.0])
def test_int4_is_right_to_half_a_step_but_for_what_lies_beyond_the_ends(
    group: int, scale_dtype: torch.dtype, mean: float
) -> None:
    weight = randn(7, 256) + mean
    made = quantize_int4(weight, group, scale_dtype)
    numbers, errors = unpack_int4(made.values), errors_in_steps(weight, made)
    assert errors[numbers > 0].max() <= 0.5 + 1e-5
    assert errors[numbers < 15].min() >= -0.5 - 1e-5


@pytest.mark.parametrize(("group", "share"), [(32, 0.87), (64, 0.9), (128, 0.9), (256, 0.87)])
def test_int4_loses_less_than_a_grid_from_the_least_to_the_greatest(group: int, share: float) -> None:
    """Of normal weights, in squared error."""
    weight = randn(64, 256)
    low, high = (
        end(weight.view(64, -1, group), dim=2).repeat_interleave(group, 1) for end in (torch.amin, torch.amax)
    )
    step = (high - low) / 15
    full = (((weight - low) / step).round() * step + low - weight).square().sum()
    made = quantize_int4(weight, group, torch.float32)
    assert (made.dequantize(torch.float32) - weight).square().sum() <= share * full


def test_int4_covers_a_group_that_is_narrow_beside_its_offset() -> None:
    """Near 5, float16 knows every 256th: offsets are off by more than the weights differ."""
    weight = 5 + randn(16, 64) / 1024
    error = (quantize_int4(weight).dequantize(torch.float32) - weight).abs()
    assert error.max() <= (weight.max() - weight.min() + 1 / 256) / 15 / 2


def test_int4_keeps_what_lies_on_a_grid_already() -> None:
    """The numbers are quarters: exact in every type."""
    numbers = torch.randint(0, 16, (8, 64), generator=torch.Generator().manual_seed(1))
    numbers[:, 0], numbers[:, 1] = 0, 15
    weight = numbers * 0.25 - 1.5
    assert torch.equal(quantize_int4(weight).dequantize(torch.float32), weight)
    assert torch.equal(unpack_int4(quantize_int4(weight).values), numbers.to(torch.uint8))


def test_the_ends_of_a_range_are_used() -> None:
    weight = randn(3, 64)
    assert quantize_int8(weight).values.abs().amax(dim=1).tolist() == [127, 127, 127]
    numbers = unpack_int4(quantize_int4(weight).values)
    assert numbers.amin(dim=1).tolist() == [0, 0, 0]
    assert numbers.amax(dim=1).tolist() == [15, 15, 15]


def test_zeros_stay_zeros_and_a_constant_group_a_constant() -> None:
    weight = torch.zeros(2, 64)
    weight[1, 32:] = -3.0
    for made in (quantize_int8(weight, 32), quantize_int4(weight, 32)):
        assert torch.equal(made.dequantize(torch.float32), weight)


def test_slabs_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = randn(9, 64)
    whole = [quantize_int8(weight, 32), quantize_int4(weight, 32)]
    monkeypatch.setattr(quant_layout, "SLAB_NUMBERS", 4 * 64)
    for one, other in zip(whole, [quantize_int8(weight, 32), quantize_int4(weight, 32)], strict=True):
        assert torch.equal(one.values, other.values)
        assert torch.equal(one.scales, other.scales)


@pytest.mark.parametrize("num_bits", [8, 4])
@pytest.mark.parametrize("has_offsets", [True, False])
def test_parts_keep_their_numbers(num_bits: int, has_offsets: bool) -> None:
    """q · scale + offset as float32 would compute it, bit for bit."""
    low, high = (-128, 128) if num_bits == 8 else (0, 16)
    q = torch.randint(low, high, (5, 96), generator=torch.Generator().manual_seed(1))
    scales, offsets = randn(5, 3, seed=2), randn(5, 3, seed=3) if has_offsets else None
    made = from_parts(q, scales, offsets, num_bits, 32)
    middle = 0 if num_bits == 8 or has_offsets else 8
    expected = (q - middle).float() * scales.repeat_interleave(32, dim=1)
    if offsets is not None:
        expected = expected + offsets.repeat_interleave(32, dim=1)
    assert torch.equal(made.dequantize(torch.float32), expected)


def test_scales_lie_group_after_group_also_when_moved_and_stacked() -> None:
    made = quantize_int4(randn(6, 128), 32)
    for weight in (made, made.to("cpu"), concat([made, made]), from_parts(made_q(made), *scales_of(made))):
        assert weight.scales.stride() == (1, weight.shape[0])
        assert weight.offsets is not None
        assert weight.offsets.stride() == (1, weight.shape[0])


def made_q(weight: QuantizedWeight) -> Tensor:
    return unpack_int4(weight.values)


def scales_of(weight: QuantizedWeight) -> tuple[Tensor, Tensor | None, int, int]:
    offsets = None if weight.offsets is None else weight.offsets.contiguous()
    return weight.scales.contiguous(), offsets, weight.num_bits, weight.group_size


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_concat_stacks_rows(quantize: type) -> None:
    parts = [randn(rows, 128, seed=rows) for rows in (4, 1, 3)]
    stacked = concat([quantize(part, 64) for part in parts])
    assert stacked.shape == (8, 128)
    expected = torch.cat([quantize(part, 64).dequantize(torch.float32) for part in parts])
    assert torch.equal(stacked.dequantize(torch.float32), expected)


def test_bytes_are_counted() -> None:
    weight = randn(64, 128)
    assert quantize_int8(weight).num_bytes == 64 * (128 + 4)
    assert quantize_int4(weight).num_bytes == 64 * (64 + 2 * (2 + 2))


def test_what_does_not_fit_is_named() -> None:
    weight = torch.zeros(2, 96)
    with pytest.raises(ValueError, match=r"rows of 96 are no multiple of the group, 64"):
        quantize_int4(weight, 64)
    with pytest.raises(ValueError, match="groups of 48: only 32, 64, 128 and a whole row of 96"):
        quantize_int8(weight, 48)
    with pytest.raises(ValueError, match="rows of 7: an odd number"):
        quantize_int4(weight[:, :7], 7)
    with pytest.raises(ValueError, match=r"not finite in torch\.float16"):
        quantize_int4(torch.full((1, 32), 1e7), 32)
    with pytest.raises(ValueError, match=r"not finite in torch\.float32"):
        quantize_int8(torch.full((1, 32), float("nan")))


def test_parts_that_do_not_fit_are_named() -> None:
    q, scales = torch.zeros(2, 64, dtype=torch.uint8), torch.ones(2, 2)
    with pytest.raises(ValueError, match="2 bits: only 8 and 4"):
        from_parts(q, scales, None, 2, 32)
    with pytest.raises(ValueError, match=r"4 bits are 0\.\.15, not 0\.\.16"):
        from_parts(torch.full_like(q, 16).triu(), scales, None, 4, 32)
    with pytest.raises(ValueError, match=r"scales of torch\.float32 \[2, 2\], not floats \[2, 1\]"):
        from_parts(q, scales, None, 4, 64)
    with pytest.raises(ValueError, match=r"4 bits in torch\.int8"):
        QuantizedWeight(q.to(torch.int8), scales, None, 32, 4)
    with pytest.raises(ValueError, match="scales must lie group after group"):
        QuantizedWeight(pack_int4(q), scales, None, 32, 4)
    with pytest.raises(ValueError, match="cannot stack"):
        concat([from_parts(q, scales, None, 4, 32), from_parts(q, scales, scales, 4, 32)])
