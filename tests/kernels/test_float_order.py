"""Keys: in the order of the values, and back again."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.float_order import (
    highest_key,
    is_finite,
    keys_of,
    lowest_finite_key,
    lowest_key,
    midway,
    reached_by,
    value_of,
)

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@triton.jit
def _there_and_back(values, keys, back, are_finite, N: tl.constexpr):
    places = tl.arange(0, N)
    found = keys_of(tl.load(values + places))
    tl.store(keys + places, found)
    tl.store(back + places, value_of(found))
    tl.store(are_finite + places, is_finite(tl.load(values + places)))


@triton.jit
def _reached(keys, counts, bounds, N: tl.constexpr):
    found = tl.load(keys + tl.arange(0, N))
    place = tl.program_id(0)
    tl.store(bounds + place, reached_by(found, tl.load(counts + place), tl.max(found, axis=0)))


@triton.jit
def _midway(low, high, between):
    tl.store(between, midway(tl.load(low), tl.load(high)))


def there_and_back(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    keys = torch.empty_like(values, dtype=torch.int32 if values.dtype == torch.float32 else torch.int64)
    back, are_finite = torch.empty_like(values), torch.empty_like(values, dtype=torch.bool)
    _there_and_back[(1,)](values, keys, back, are_finite, N=len(values))
    return keys, back, are_finite


@TYPES
def test_keys_are_in_the_order_of_the_values(dtype: torch.dtype) -> None:
    small, large = torch.finfo(dtype).smallest_normal / 4, torch.finfo(dtype).max
    values = torch.tensor([-math.inf, -large, -1.5, -small, 0.0, small, 1.0, math.inf], dtype=dtype)
    keys, back, are_finite = there_and_back(values)
    assert (keys.diff() > 0).all()
    assert torch.equal(back, values)
    assert are_finite.tolist() == [False] + [True] * 6 + [False]


@TYPES
def test_zeros_are_equal_and_nan_is_above_all(dtype: torch.dtype) -> None:
    nan = torch.tensor([math.nan, math.nan], dtype=dtype)
    nan[1] = torch.copysign(nan[1], torch.tensor(-1.0))
    keys, back, are_finite = there_and_back(torch.cat((torch.tensor([0.0, -0.0], dtype=dtype), nan)))
    assert keys.tolist() == [0, 0, *2 * [torch.iinfo(keys.dtype).max]]
    assert back.isnan().tolist() == [False, False, True, True]
    assert are_finite.tolist() == [True, True, False, False]


@TYPES
def test_the_outermost_keys(dtype: torch.dtype) -> None:
    keys, _, _ = there_and_back(torch.tensor([math.nan, -math.inf], dtype=dtype))
    key_type = tl.int32 if dtype == torch.float32 else tl.int64
    assert highest_key(key_type) == keys[0]
    assert lowest_key(key_type) == torch.iinfo(keys.dtype).min
    assert lowest_finite_key(key_type) == keys[1] + 1


@TYPES
def test_the_highest_key_that_so_many_reach(dtype: torch.dtype) -> None:
    keys, _, _ = there_and_back(torch.tensor([2.0, -math.inf, 5.0, 2.0, 7.0, -1e30, 0.0, 2.0], dtype=dtype))
    counts = torch.tensor([1, 2, 3, 5, 6, 7, 8, 9], dtype=torch.int32)
    bounds = torch.empty(8, dtype=keys.dtype)
    _reached[(8,)](keys, counts, bounds, N=8)
    lowest = there_and_back(torch.tensor([-math.inf], dtype=dtype))[0][0] + 1
    assert bounds.tolist() == [*keys[[4, 2, 0, 0, 6, 5]].tolist(), lowest, lowest]


@pytest.mark.parametrize(
    ("low", "high", "between"),
    [(1, 4, 2), (-4, -1, -3), (-(2**63), 2**63 - 1, -1), (2**63 - 3, 2**63 - 1, 2**63 - 2)],
)
def test_midway_does_not_overflow(low: int, high: int, between: int) -> None:
    found = torch.empty(1, dtype=torch.int64)
    _midway[(1,)](torch.tensor([low]), torch.tensor([high]), found)
    assert found.item() == between
