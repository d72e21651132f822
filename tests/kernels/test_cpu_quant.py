"""Quantised weights on a CPU: each form multiplies by what the weight stands for, chosen by its rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import cpu_quant_speed
from kernels.cpu_quant import FEW_ROWS, PackedInt4, PackedInt8, linear, packed_int4, packed_int8, prepared
from kernels.quant_layout import QuantizedWeight, from_parts, quantize_int4, quantize_int8

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


def made(how: Callable[[Tensor], QuantizedWeight], shape: tuple[int, int] = (128, 192)) -> QuantizedWeight:
    return how(torch.randn(shape, generator=torch.Generator().manual_seed(4)))


def symmetric_int4(weight: Tensor) -> QuantizedWeight:
    numbers = (weight * 4 + 8).round().clamp(0, 15)
    return from_parts(numbers, torch.full((len(weight), weight.shape[1] // 32), 0.25), None, 4, 32)


INT4 = [
    quantize_int4,
    lambda weight: quantize_int4(weight, 32),
    symmetric_int4,
]


@pytest.mark.parametrize(
    ("weight", "dtype", "max_num_seqs", "form"),
    [
        (made(quantize_int8), BFLOAT16, FEW_ROWS, PackedInt8),
        (made(quantize_int8), BFLOAT16, FEW_ROWS + 1, Tensor),
        (made(quantize_int8), FLOAT32, 256, PackedInt8),
        (made(quantize_int8), torch.float64, 1, Tensor),
        (made(lambda weight: quantize_int8(weight, 32)), BFLOAT16, 1, Tensor),
        (made(lambda weight: quantize_int8(weight, 32)), FLOAT32, 1, Tensor),
        (made(quantize_int4), BFLOAT16, FEW_ROWS, PackedInt4),
        (made(quantize_int4), BFLOAT16, FEW_ROWS + 1, Tensor),
        (made(quantize_int4), FLOAT32, 1, Tensor),
        (made(quantize_int4, (96, 192)), BFLOAT16, 1, Tensor),
        (made(lambda weight: quantize_int4(weight, 32), (64, 96)), BFLOAT16, 1, Tensor),
        (made(lambda weight: quantize_int4(weight, 192)), BFLOAT16, 1, Tensor),
    ],
)
def test_the_form_follows_bits_groups_dtype_and_seats(
    weight: QuantizedWeight, dtype: torch.dtype, max_num_seqs: int, form: type
) -> None:
    chosen = prepared(weight, dtype, max_num_seqs)
    assert isinstance(chosen, form)
    if isinstance(chosen, Tensor):
        assert torch.equal(chosen, weight.dequantize(dtype))


@pytest.mark.parametrize("num_rows", [0, 1, 8, 9, 64, 65])
@pytest.mark.parametrize("how", [quantize_int8, *INT4])
def test_packed_weights_multiply_by_what_they_stand_for(
    how: Callable[[Tensor], QuantizedWeight], num_rows: int
) -> None:
    weight = made(how)
    x, bias = torch.randn(num_rows, 192).to(BFLOAT16), torch.randn(128).to(BFLOAT16)
    expected = x.double() @ weight.dequantize(torch.float64).T + bias.double()
    found = linear(x, prepared(weight, BFLOAT16, 1), bias)
    assert found.dtype == BFLOAT16
    assert torch.allclose(found.double(), expected, rtol=0.02, atol=0.2)


def test_int8_in_float32_is_exact_but_for_the_order_of_its_rounding() -> None:
    weight, x = made(quantize_int8), torch.randn(5, 192)
    expected = x.double() @ weight.dequantize(torch.float64).T
    assert torch.allclose(linear(x, prepared(weight, FLOAT32, 32)).double(), expected, atol=1e-4)


@pytest.mark.parametrize("how", [quantize_int8, quantize_int4])
def test_a_weight_that_was_not_prepared_is_widened(how: Callable[[Tensor], QuantizedWeight]) -> None:
    weight, x = made(how), torch.randn(3, 192)
    assert torch.equal(linear(x, weight), x @ weight.dequantize(FLOAT32).T)


def test_few_and_many_rows_of_one_form_agree() -> None:
    x = torch.randn(16, 192).to(BFLOAT16)
    int8, int4 = packed_int8(made(quantize_int8), BFLOAT16), packed_int4(made(quantize_int4), BFLOAT16)
    for form in (int8, int4):
        assert torch.allclose(form.few_rows(x), form.many_rows(x), rtol=0.02, atol=0.2)


def test_a_packed_weight_takes_the_memory_of_its_bits() -> None:
    weight = made(quantize_int4, (256, 512))
    form = packed_int4(weight, BFLOAT16)
    dense = 256 * 512 * 2
    held = form.packed.nbytes + form.numbers.nbytes + form.scales_and_offsets.nbytes
    assert held == dense // 2 + dense // 32
    assert form.numbers is weight.values


def test_the_speed_of_every_form_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quant_speed, "SHAPES", {"o": (64, 64)})
    monkeypatch.setattr(cpu_quant_speed, "NUM_LAYERS", 1)
    monkeypatch.setattr(cpu_quant_speed, "NUM_ROWS", (1,))
    (line,) = cpu_quant_speed.lines(1, BFLOAT16, rounds=1)
    assert line.split()[:4] == ["bfloat16", "1", "o", "1"]
    assert len(line.split()) == 9
