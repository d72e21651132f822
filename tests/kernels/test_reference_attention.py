"""The oracle of paged attention against the plainer one, and against masks written out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.block_lists import BlockLists
from kernels.reference_attention import paged_attention
from tests.kernels.paged_batch import PagedBatch, sequences


@settings(max_examples=40)
@given(sequences, st.integers(0, 2**31))
def test_it_equals_the_plainer_reference_and_sees_no_unused_slot(
    lens: list[tuple[int, int]], seed: int
) -> None:
    batch, poisoned = PagedBatch(lens, seed), PagedBatch(lens, seed)
    poisoned.poison_unused()
    expected = reference.paged_attention(**arguments(batch))
    assert torch.allclose(paged_attention(**arguments(poisoned)), expected, rtol=1e-12, atol=1e-14)


def arguments(batch: PagedBatch) -> dict[str, Any]:
    return {
        "query": batch.query,
        "k_cache": batch.k_cache,
        "v_cache": batch.v_cache,
        "block_table": batch.block_table,
        "cu_query_lens": torch.tensor(batch.cu_query_lens, dtype=torch.int32),
        "seq_lens": torch.tensor(batch.seq_lens, dtype=torch.int32),
        "scale": batch.kv.scale,
    }


KEYS = 6


def seen(num_queries: int = KEYS, **options: Any) -> list[list[int]]:
    """Which keys each of the last queries of one sequence of six tokens sees.

    All weights of a query are equal, and key n has a one at n: what is not zero has been seen.
    """
    caches = {
        "k_cache": torch.zeros(3, 1, 4, KEYS),
        "v_cache": torch.eye(KEYS + 2)[:, :KEYS].view(2, 1, 4, KEYS)[[0, 1, 0]],  # blocks 2, 1
    }
    attended = paged_attention(
        torch.zeros(num_queries, 1, KEYS),
        **caches,
        block_table=torch.tensor([[2, 1]], dtype=torch.int32),
        cu_query_lens=torch.tensor([0, num_queries], dtype=torch.int32),
        seq_lens=torch.tensor([KEYS], dtype=torch.int32),
        scale=1.0,
        **options,
    )
    return [row.nonzero().flatten().tolist() for row in attended[:, 0]]


def test_a_query_sees_the_keys_up_to_its_own() -> None:
    assert seen() == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert seen(2) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


def test_a_window_counts_the_query_s_own_key() -> None:
    assert seen(window=1) == [[0], [1], [2], [3], [4], [5]]
    assert seen(window=3) == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert seen(window=100) == seen()


def test_what_is_behind_the_window_may_be_anything() -> None:
    nan = torch.tensor([[[0.0], [0.0]], [[math.nan], [8.0]]])[:, None]
    assert one_key_pair(4.0, window=1, k_cache=nan, v_cache=nan).item() == 8.0


def lists(visits: list[list[tuple[int, bool]]]) -> BlockLists:
    """Blocks of two queries and of two keys, for one sequence: (block of keys, seen in full)."""
    width = max(map(len, visits))
    padded = [[*row, *[(99, True)] * (width - len(row))] for row in visits]
    return BlockLists(
        query_block_size=2,
        key_block_size=2,
        num_visits=torch.tensor([[len(row) for row in visits]], dtype=torch.int32),
        key_blocks=torch.tensor([[[block for block, _ in row] for row in padded]], dtype=torch.int32),
        is_full=torch.tensor([[[is_full for _, is_full in row] for row in padded]]),
    )


def test_a_visit_is_causal_or_full_and_what_is_not_listed_is_not_seen() -> None:
    mask = lists([[(0, False)], [(2, True), (1, False)], []])
    assert seen(block_mask=mask) == [[0], [0, 1], [2, 4, 5], [2, 3, 4, 5], [], []]


def test_blocks_of_queries_are_counted_from_the_first_of_the_batch() -> None:
    assert seen(3, block_mask=lists([[(0, True)], [(2, False)]])) == [[0, 1], [0, 1], [4, 5]]


def test_a_window_cuts_causal_visits_and_no_full_ones() -> None:
    mask = lists([[(0, False)], [(0, True), (1, False)], [(1, False), (2, False)]])
    expected = [[0], [1], [0, 1, 2], [0, 1, 3], [4], [5]]
    assert seen(window=1, block_mask=mask) == expected


def one_key_pair(query: float, **options: Any) -> Tensor:
    """Two keys, 0 and 1, with values 4 and 8, for a query at the second: [1, 1, 1]."""
    one = torch.tensor([1], dtype=torch.int32)
    return paged_attention(
        torch.tensor([[[query]]]),
        **{
            "k_cache": torch.tensor([[[9.0], [9.0]], [[0.0], [1.0]]])[:, None],
            "v_cache": torch.tensor([[[9.0], [9.0]], [[4.0], [8.0]]])[:, None],
            **options,
        },
        block_table=one[None],
        cu_query_lens=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=2 * one,
        scale=0.5,
    )


def test_a_soft_cap_bends_the_scaled_scores() -> None:
    share = 1 / (1 + math.exp(-3 * math.tanh(2.0 / 3)))
    assert one_key_pair(4.0, soft_cap=3.0).item() == pytest.approx(4 + 4 * share, rel=1e-12)


def test_bytes_stand_for_themselves_times_their_slot_s_scale() -> None:
    k_cache, v_cache = torch.tensor([[[9], [9]], [[0], [2]]])[:, None], torch.tensor([[[9], [9]], [[8], [2]]])
    scales = {
        "k_scale": torch.tensor([[9.0, 9.0], [1.0, 0.5]])[:, None],
        "v_scale": torch.tensor([[9.0, 9.0], [0.5, 4.0]])[:, None],
    }
    for stored in (torch.int8, torch.float8_e4m3fn):
        quantised = {"k_cache": k_cache.to(stored), "v_cache": v_cache[:, None].to(stored)}
        assert torch.equal(one_key_pair(1.0, **quantised, **scales), one_key_pair(1.0))


def test_a_row_without_keys_is_zero_and_a_poisoned_one_is_not() -> None:
    arguments_of_nothing = arguments(PagedBatch([(4, 1), (2, 1)], 1))
    arguments_of_nothing["seq_lens"][1] = 0
    attended = paged_attention(**arguments_of_nothing)
    assert attended[1].eq(0).all()
    assert attended[0].ne(0).any()
    arguments_of_nothing["query"][0] = float("nan")
    assert paged_attention(**arguments_of_nothing)[0].isnan().all()
