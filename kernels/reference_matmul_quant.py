"""The plain products with quantised weights: a weight at a time is made anew, then multiplied in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_layout import QuantizedWeight


def matmul_quant(
    x: Tensor,  # [T, K]
    weight: QuantizedWeight,  # [N, K]
    bias: Tensor | None = None,  # [N]
) -> Tensor:
    """x · Wᵀ + bias in float64, [T, N]."""
    product = x.double() @ dequantized(weight).t()
    return product if bias is None else product + bias.double()


def dequantized(weight: QuantizedWeight) -> Tensor:
    """[N, K]: each number from its byte, times its group's scale, plus its group's offset."""
    num_rows, num_columns = weight.shape
    wide = torch.empty(num_rows, num_columns, dtype=torch.float64, device=weight.device)
    for column in range(num_columns):
        group = column // weight.group_size
        wide[:, column] = _numbers(weight, column) * weight.scales[:, group].double()
        if weight.offsets is not None:
            wide[:, column] += weight.offsets[:, group].double()
    return wide


def _numbers(weight: QuantizedWeight, column: int) -> Tensor:
    """[N] of one column."""
    if weight.num_bits == 8:
        return weight.values[:, column].double()
    half = weight.shape[1] // 2
    bytes_of = weight.values[:, column % half].int()
    numbers = bytes_of % 16 if column < half else bytes_of // 16
    return (numbers - (8 if weight.offsets is None else 0)).double()


def matmul_w8a8(
    x: Tensor,  # [T, K]
    weight: QuantizedWeight,  # [N, K], 8 bits, a scale a row
    bias: Tensor | None = None,  # [N]
) -> Tensor:
    """x as whole numbers, too: the sums are exact. float64 [T, N]."""
    codes, scales = quantized_rows(x)
    product = codes.double() @ weight.values.double().t() * scales.double() * weight.scales.double().t()
    return product if bias is None else product + bias.double()


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [T, K] and scales [T, 1]: scale = max |x| / 127 of the row, code = x / scale to the nearest, ties
    to even. In float32, for the scale is stored so; a row of zeros has scale 0."""
    wide = x.float()
    scales = wide.abs().amax(dim=1, keepdim=True) / 127.0
    codes = wide / torch.where(scales == 0.0, 1.0, scales)
    return codes.round().to(torch.int8), scales
