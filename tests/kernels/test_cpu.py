"""The CPU path equals the reference on ragged batches, and depends on nothing but its own sequences."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import cpu, reference
from tests.kernels.paged_batch import BLOCK_SIZE, HEAD_DIM, PagedBatch, sequences


@settings(max_examples=60)
@given(sequences, st.integers(0, 2**31))
def test_attention_equals_the_reference(lens: list[tuple[int, int]], seed: int) -> None:
    one, other = PagedBatch(lens, seed), PagedBatch(lens, seed)
    expected, computed = one.by_reference(), other.by_cpu()
    assert torch.equal(one.k_cache, other.k_cache)
    assert torch.equal(one.v_cache, other.v_cache)
    assert torch.allclose(computed, expected, rtol=1e-10, atol=1e-12)


def test_bfloat16_attention_stays_within_its_rounding() -> None:
    lens = [(100, 1), (3, 1), (17, 8)]
    wide = PagedBatch(lens, 5, torch.bfloat16)
    expected, computed = PagedBatch(lens, 5, torch.bfloat16).by_reference(), wide.by_cpu()
    assert (computed.float() - expected.float()).abs().max() < 0.03


@settings(max_examples=20)
@given(sequences, st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_a_cache_of_another_type_is_written_rounded_and_read_widened(
    lens: list[tuple[int, int]], seed: int, dtype: torch.dtype
) -> None:
    one, other = (PagedBatch(lens, seed, dtype, torch.bfloat16) for _ in range(2))
    expected, computed = one.by_reference(), other.by_cpu()
    assert torch.equal(one.k_cache, other.k_cache)
    assert computed.dtype == dtype
    assert torch.allclose(computed, expected, rtol=1e-4, atol=1e-5)


def test_a_wider_cache_than_what_is_computed_with_is_read_rounded() -> None:
    lens = [(100, 1), (3, 1), (17, 8)]
    one, other = (PagedBatch(lens, 5, torch.bfloat16, torch.float32) for _ in range(2))
    expected, computed = one.by_reference(), other.by_cpu()
    assert computed.dtype == torch.bfloat16
    assert (computed.float() - expected.float()).abs().max() < 0.03


def test_lengths_that_differ_much_are_not_padded_to_each_other() -> None:
    lengths = [1000, 16, 900, 40, 20, 500]
    assert cpu._by_length(range(6), lengths, BLOCK_SIZE) == [[0, 2, 5], [3, 4], [1]]


def test_a_gather_has_a_limit_and_a_longer_sequence_is_gathered_alone() -> None:
    limit = cpu.GATHER_LIMIT
    lengths = [limit // 2, limit // 2 - 3, limit // 2, 2 * limit]
    assert cpu._by_length(range(4), lengths, BLOCK_SIZE) == [[3], [0, 2], [1]]


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(0, 2**31))
def test_elementwise_kernels_equal_the_reference(num_tokens: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, 3, HEAD_DIM, generator=random, dtype=torch.float64)
    flat, weight = x.flatten(1), torch.rand(3 * HEAD_DIM, generator=random, dtype=torch.float64)
    angles = torch.rand(num_tokens, HEAD_DIM // 2, generator=random, dtype=torch.float64)
    before = x.clone()
    cos, sin = angles.cos(), angles.sin()
    assert torch.allclose(cpu.rms_norm(flat, weight, 1e-5), reference.rms_norm(flat, weight, 1e-5))
    assert torch.allclose(cpu.silu_mul(flat), reference.silu_mul(flat))
    assert torch.allclose(cpu.rope(x, cos, sin), reference.rope(x, cos, sin))
    assert torch.equal(x, before)
