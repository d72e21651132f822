"""What counts as equal: a bound on the whole, a bound on each element, NaN never."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.parity.tolerance import RELATIVE, SPIKE, compare

INF, NAN = math.inf, math.nan


def reason(output: list[float], reference: list[float], dtype: torch.dtype = torch.float32) -> str | None:
    return compare(torch.tensor(output, dtype=dtype), torch.tensor(reference).double(), dtype).reason


@pytest.mark.parametrize("dtype", RELATIVE)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.floats(-1, 1))
def test_an_error_below_the_bound_on_the_whole_is_held(
    dtype: torch.dtype, values: list[float], share: float
) -> None:
    reference = torch.tensor(values, dtype=torch.float64)
    output = reference * (1 + 0.999 * share * RELATIVE[dtype])
    assert compare(output, reference, dtype).reason is None


@pytest.mark.parametrize("dtype", RELATIVE)
def test_an_error_above_it_is_not(dtype: torch.dtype) -> None:
    reference = torch.arange(1.0, 9.0, dtype=torch.float64)
    found = compare(reference * (1 + 1.01 * RELATIVE[dtype]), reference, dtype)
    assert found.reason is not None
    assert found.index == (7,)
    assert found.relative == pytest.approx(1.01 * RELATIVE[dtype])


def test_one_wrong_element_among_many_is_found_and_named() -> None:
    reference = torch.ones(100, 1000, dtype=torch.float64)
    output = reference.clone()
    output[3, 14] += 1.01 * SPIKE * RELATIVE[torch.float16]
    found = compare(output, reference, torch.float16)
    assert found.relative < RELATIVE[torch.float16]
    assert found.index == (3, 14)
    assert found.reason is not None


def test_equal_outputs_have_no_index() -> None:
    found = compare(torch.ones(3), torch.ones(3).double(), torch.float32)
    assert (found.relative, found.max_abs, found.index, found.reason) == (0.0, 0.0, None, None)


@pytest.mark.parametrize(
    ("output", "reference", "why"),
    [
        ([1.0, NAN], [1.0, 2.0], "the output is NaN"),
        ([1.0, NAN], [1.0, NAN], "the reference is NaN"),
        ([1.0, 2.0], [1.0, NAN], "the reference is NaN"),
        ([1.0, -INF], [1.0, 2.0], "an infinity in one of the two only"),
        ([1.0, 2.0], [1.0, -INF], "an infinity in one of the two only"),
        ([1.0, INF], [1.0, -INF], "an infinity in one of the two only"),
        ([1.0, -INF], [1.0, -INF], None),
        ([-INF, -INF], [-INF, -INF], None),
        ([0.0, 0.0], [0.0, 0.0], None),
    ],
)
def test_what_is_not_finite(output: list[float], reference: list[float], why: str | None) -> None:
    assert reason(output, reference) == why


def test_where_nothing_was_to_be_nothing_may_be() -> None:
    assert reason([1e-30, 0.0], [0.0, 0.0]) is not None


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool])
def test_whole_numbers_must_be_equal(dtype: torch.dtype) -> None:
    reference = torch.tensor([1, 0, 1], dtype=dtype)
    output = torch.tensor([1, 1, 1], dtype=dtype)
    assert compare(reference, reference, torch.float16).reason is None
    found = compare(output, reference, torch.float16)
    assert (found.index, found.reason) == ((1,), "1 of 3 whole numbers differ")


@pytest.mark.parametrize("other", [torch.ones(2), torch.ones(3, 1), torch.ones(())])
def test_another_shape_is_wrong(other: Tensor) -> None:
    assert "shape" in str(compare(other, torch.ones(3), torch.float32).reason)


def test_nothing_equals_nothing() -> None:
    assert compare(torch.ones(0), torch.ones(0), torch.float32).reason is None
