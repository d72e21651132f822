"""A ragged batch over a paged cache, for every kernel that computes attention."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernels import cpu, deterministic, reference
from kernels.kv_shape import KvShape

Kernel = type[reference.PagedStep] | type[cpu.PagedStep] | type[deterministic.PagedStep]
BLOCK_SIZE, NUM_KV_HEADS, NUM_HEADS, HEAD_DIM = 4, 2, 6, 8

sequences = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 5, 9])), min_size=1, max_size=6
)
"""(tokens computed before, query tokens) of each sequence."""


class PagedBatch:
    """Random keys and values in random blocks, each sequence's in random order; block 0 is nobody's."""

    def __init__(
        self,
        lens: list[tuple[int, int]],
        seed: int,
        dtype: torch.dtype = torch.float64,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        random = torch.Generator().manual_seed(seed)
        self.kv = KvShape(BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, dtype, cache_dtype or dtype)
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
        self.k_cache = torch.randn(shape, generator=random, dtype=dtype).to(self.kv.cache_dtype)
        self.v_cache = torch.randn(shape, generator=random, dtype=dtype).to(self.kv.cache_dtype)
        self.query = torch.randn(num_tokens, NUM_HEADS, HEAD_DIM, generator=random, dtype=dtype)
        self.key = torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM, generator=random, dtype=dtype)

    def poison_unused(self) -> None:
        """Makes every slot that holds no token of a sequence NaN."""
        used = torch.zeros(self.k_cache.shape[0] * BLOCK_SIZE, dtype=torch.bool)
        for table, seq_len in zip(self.block_table.tolist(), self.seq_lens, strict=True):
            for position in range(seq_len):
                used[table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE] = True
        for cache in (self.k_cache, self.v_cache):
            cache.transpose(1, 2).masked_fill_(~used.view(-1, BLOCK_SIZE, 1, 1), float("nan"))

    def by_reference(self) -> Tensor:
        return self._by(reference.PagedStep)

    def by_cpu(self) -> Tensor:
        return self._by(cpu.PagedStep)

    def by_deterministic(self) -> Tensor:
        return self._by(deterministic.PagedStep)

    def _by(self, kind: Kernel) -> Tensor:
        step = kind(self.block_table, self.slot_mapping, self.cu_query_lens, self.seq_lens, self.kv)
        step.kv_write(self.key, -self.key, self.k_cache, self.v_cache)
        return step.attend(self.query, self.k_cache, self.v_cache)

    def alone(self, sequence: int, token: int) -> Tensor:
        """The deterministic kernel on one query of one sequence, as a step of its own: [1, H, D]."""
        behind = self.cu_query_lens[sequence + 1] - 1 - token
        step = deterministic.PagedStep(
            self.block_table[sequence : sequence + 1],
            self.slot_mapping[token : token + 1],
            [0, 1],
            [self.seq_lens[sequence] - behind],
            self.kv,
        )
        return step.attend(self.query[token : token + 1], self.k_cache, self.v_cache)
