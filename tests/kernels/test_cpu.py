"""The CPU path equals the reference on ragged batches, and depends on nothing but its own sequences."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import cpu, reference

BLOCK_SIZE, NUM_KV_HEADS, NUM_HEADS, HEAD_DIM = 4, 2, 6, 8
SCALE = HEAD_DIM**-0.5

sequences = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 5, 9])), min_size=1, max_size=6
)
"""(tokens computed before, query tokens) of each sequence."""


class Paged:
    """A ragged batch over a cache of random blocks, each sequence's in random order."""

    def __init__(self, lens: list[tuple[int, int]], seed: int, dtype: torch.dtype = torch.float64) -> None:
        random = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.seq_lens = [before + queries for before, queries in lens]
        self.cu_query_lens = [sum(q for _, q in lens[:i]) for i in range(len(lens) + 1)]
        num_blocks = [-(-n // BLOCK_SIZE) for n in self.seq_lens]
        free = (torch.randperm(sum(num_blocks), generator=random) + 1).tolist()
        tables = [[free.pop() for _ in range(n)] for n in num_blocks]
        self.block_table = torch.tensor(
            [table + [0] * (max(num_blocks) - len(table)) for table in tables], dtype=torch.int32
        )
        slots = [
            table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for table, (before, queries) in zip(tables, lens, strict=True)
            for position in range(before, before + queries)
        ]
        self.slot_mapping = torch.tensor(slots)
        shape = (sum(num_blocks) + 1, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        num_tokens = self.cu_query_lens[-1]
        self.k_cache = torch.randn(shape, generator=random, dtype=dtype)
        self.v_cache = torch.randn(shape, generator=random, dtype=dtype)
        self.query = torch.randn(num_tokens, NUM_HEADS, HEAD_DIM, generator=random, dtype=dtype)
        self.key = torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM, generator=random, dtype=dtype)

    def by_reference(self) -> Tensor:
        reference.kv_write(self.key, -self.key, self.k_cache, self.v_cache, self.slot_mapping)
        return reference.paged_attention(
            self.query,
            self.k_cache,
            self.v_cache,
            self.block_table,
            torch.tensor(self.cu_query_lens, dtype=torch.int32),
            torch.tensor(self.seq_lens, dtype=torch.int32),
            SCALE,
        )

    def by_cpu(self) -> Tensor:
        step = cpu.PagedStep(
            self.block_table,
            self.slot_mapping,
            self.cu_query_lens,
            self.seq_lens,
            block_size=BLOCK_SIZE,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            scale=SCALE,
            dtype=self.dtype,
        )
        step.kv_write(self.key, -self.key, self.k_cache, self.v_cache)
        return step.attend(self.query, self.k_cache, self.v_cache)


@settings(deadline=None, max_examples=60)
@given(sequences, st.integers(0, 2**31))
def test_attention_equals_the_reference(lens: list[tuple[int, int]], seed: int) -> None:
    one, other = Paged(lens, seed), Paged(lens, seed)
    expected, computed = one.by_reference(), other.by_cpu()
    assert torch.equal(one.k_cache, other.k_cache)
    assert torch.equal(one.v_cache, other.v_cache)
    assert torch.allclose(computed, expected, rtol=1e-10, atol=1e-12)


def test_bfloat16_attention_stays_within_its_rounding() -> None:
    lens = [(100, 1), (3, 1), (17, 8)]
    wide = Paged(lens, 5, torch.bfloat16)
    expected, computed = Paged(lens, 5, torch.bfloat16).by_reference(), wide.by_cpu()
    assert (computed.float() - expected.float()).abs().max() < 0.03


def test_lengths_that_differ_much_are_not_padded_to_each_other() -> None:
    lengths = [1000, 16, 900, 40, 20, 500]
    assert cpu._by_length(range(6), lengths, BLOCK_SIZE) == [[0, 2, 5], [3, 4], [1]]


@settings(deadline=None, max_examples=30)
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
