"""Reference mode: each row's bits are those it has alone, and its values are the reference's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import deterministic, reference
from tests.kernels.paged_batch import PagedBatch, sequences

SPLIT = deterministic.SPLIT
dtypes = st.sampled_from([torch.float32, torch.float64])


def random_tensors(seed: int, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=dtype) for shape in shapes]


@settings(max_examples=150)
@given(st.integers(1, 70), st.integers(1, 80), st.integers(1, 40), dtypes, st.integers(0, 2**31))
def test_a_matmul_s_row_is_what_it_is_alone(
    inner: int, outer: int, num_rows: int, dtype: torch.dtype, seed: int
) -> None:
    x, weight, bias = random_tensors(seed, dtype, (num_rows, inner), (outer, inner), (outer,))
    together = deterministic.linear(x, weight, bias)
    alone = torch.cat([deterministic.linear(row, weight, bias) for row in x.split(1)])
    assert torch.equal(together, alone)
    assert torch.allclose(together, reference.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("inner", "outer"), [(576, 960), (1536, 576), (576, 3072), (896, 4864)])
def test_nor_do_the_shapes_of_real_models_depend_on_the_batch(inner: int, outer: int) -> None:
    x, weight = random_tensors(inner, torch.float32, (64, inner), (outer, inner))
    whole = deterministic.linear(x, weight)
    for begin in (0, 1, 15, 16, 17, 40, 63):
        for end in (begin + 1, begin + 5, 64):
            assert torch.equal(deterministic.linear(x[begin:end], weight), whole[begin:end])


@settings(max_examples=60)
@given(st.integers(1, 90), st.integers(1, 20), dtypes, st.integers(0, 2**31))
def test_norm_and_activation_of_a_row_are_what_they_are_alone(
    width: int, num_rows: int, dtype: torch.dtype, seed: int
) -> None:
    x, gate_up, weight = random_tensors(seed, dtype, (num_rows, width), (num_rows, 2 * width), (width,))
    for rows, kernel in (
        (x, lambda rows: reference.rms_norm(rows, weight, 1e-5)),
        (4 * gate_up, deterministic.silu_mul),
    ):
        assert torch.equal(kernel(rows), torch.cat([kernel(row) for row in rows.split(1)]))
    assert torch.allclose(deterministic.silu_mul(gate_up), reference.silu_mul(gate_up), rtol=1e-5, atol=1e-6)


def test_a_gate_far_below_zero_is_closed() -> None:
    assert deterministic.silu_mul(torch.tensor([[-1e4, 3.0]])).item() == 0.0


borders = st.lists(
    st.tuples(
        st.sampled_from([0, 3, SPLIT - 2, SPLIT - 1, SPLIT, 2 * SPLIT]), st.sampled_from([1, 1, 2, 9, 23])
    ),
    min_size=1,
    max_size=4,
)
"""Sequences of (tokens before, query tokens) about the borders of splits and tiles."""


@settings(max_examples=40)
@given(sequences | borders, st.integers(0, 2**31))
def test_attention_equals_the_reference(lens: list[tuple[int, int]], seed: int) -> None:
    one, other = PagedBatch(lens, seed), PagedBatch(lens, seed)
    expected, computed = one.by_reference(), other.by_deterministic()
    assert torch.equal(one.k_cache, other.k_cache)
    assert torch.equal(one.v_cache, other.v_cache)
    assert torch.allclose(computed, expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=25)
@given(borders, dtypes, st.sampled_from([None, torch.bfloat16]), st.integers(0, 2**31))
def test_a_query_attends_as_it_does_alone(
    lens: list[tuple[int, int]], dtype: torch.dtype, cache_dtype: torch.dtype | None, seed: int
) -> None:
    batch = PagedBatch(lens, seed, dtype, cache_dtype)
    together = batch.by_deterministic()
    for sequence in range(len(lens)):
        for token in range(batch.cu_query_lens[sequence], batch.cu_query_lens[sequence + 1]):
            assert torch.equal(batch.alone(sequence, token), together[token : token + 1])


def test_what_no_query_sees_may_be_poisoned() -> None:
    lens = [(5, 1), (SPLIT, 2), (0, 7)]
    clean, poisoned = PagedBatch(lens, 3), PagedBatch(lens, 3)
    poisoned.poison_unused()
    assert torch.equal(poisoned.by_deterministic(), clean.by_deterministic())


def test_a_poisoned_query_leaves_its_neighbours_alone() -> None:
    lens = [(5, 1), (40, 3), (0, 7)]
    clean, poisoned = PagedBatch(lens, 3), PagedBatch(lens, 3)
    poisoned.query[2] = float("nan")
    expected, computed = clean.by_deterministic(), poisoned.by_deterministic()
    assert computed[2].isnan().all()
    assert torch.equal(computed[[0, 1, *range(3, 11)]], expected[[0, 1, *range(3, 11)]])
