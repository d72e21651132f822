"""What parity does not say of prefill: chunks, lists, what it leaves alone, and what it never reads.

That it equals the reference is in `test_parity.py`, also where unused slots and the null block are NaN.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention_prefill
from kernels.attention_prefill import paged_prefill, prefill_constants
from kernels.attention_tile import AttentionTile
from kernels.block_lists import BlockLists
from kernels.parity.cases_attention_prefill import NUM_PADDING, Batch, arguments, case_of
from kernels.parity.runner import check, device_in_use

TILE = AttentionTile(16, 16, num_warps=4, num_stages=2)
CACHE = (9, 2, 16, 64)
batches = st.builds(
    Batch,
    st.just(torch.float32),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (7, 1)]),
    block_size=st.sampled_from([4, 16]),
    lens=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=4)
    .filter(lambda lens: any(queries for _, queries in lens))
    .map(tuple),
    window=st.none() | st.integers(1, 50),
    tile=st.tuples(st.sampled_from([16, 32, 64]), st.sampled_from([16, 32])),
)


def made(
    lens: tuple[tuple[int, int], ...], device: torch.device | None = None, **fields: Any
) -> dict[str, Any]:
    """Arguments of `paged_prefill`."""
    batch = Batch(torch.float32, lens=lens, **fields)
    return arguments(batch, torch.Generator().manual_seed(7), device or device_in_use())


def chunk_of(whole: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    """The queries from `begin` to `end` of a step with one sequence that has nothing cached."""
    device = whole["query"].device
    return whole | {
        "query": whole["query"][begin:end],
        "cu_query_lens": torch.tensor([0, end - begin], dtype=torch.int32, device=device),
        "seq_lens": torch.tensor([end], dtype=torch.int32, device=device),
        "max_query_len": end - begin,
    }


def lists(visits: list[list[list[tuple[int, bool]]]], query_block: int, key_block: int) -> BlockLists:
    """From (key block, is full) of each visit of each block of queries of each sequence."""
    most = max(len(row) for sequence in visits for row in sequence)
    padded = [[row + [(0, False)] * (most - len(row)) for row in sequence] for sequence in visits]
    pairs = torch.tensor(padded, device=device_in_use())
    counts = torch.tensor([[len(row) for row in sequence] for sequence in visits], dtype=torch.int32)
    return BlockLists(
        query_block, key_block, counts.to(pairs.device), pairs[..., 0].int(), pairs[..., 1].bool()
    )


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(batches)
def test_any_ragged_batch_equals_the_reference(batch: Batch) -> None:
    assert [row.told for row in check(case_of(batch), device_in_use()) if row.failure] == []


@pytest.mark.parametrize("border", [1, 16])
def test_chunks_change_nothing(border: int) -> None:
    whole = made(((0, 18),))
    expected = paged_prefill(**whole)
    for begin, end in ((0, border), (border, 18)):
        computed = paged_prefill(**chunk_of(whole, begin, end))
        assert torch.allclose(computed, expected[begin:end], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tile", [AttentionTile(32, 16, 4, 1), AttentionTile(64, 32, 4, 1), None])
def test_tiles_change_nothing(tile: AttentionTile | None) -> None:
    step = made(((0, 12), (19, 3)), window=9)
    computed = paged_prefill(**step | {"tile": tile})
    assert torch.allclose(computed, paged_prefill(**step), rtol=1e-5, atol=1e-6)


def test_tokens_behind_the_last_sequence_are_zero_in_a_new_output_and_untouched_in_a_given_one() -> None:
    step = made(((0, 3), (0, 0)))  # a tile has room for 5
    out = torch.full_like(step["query"], float("nan"))
    assert paged_prefill(**step, out=out) is out
    assert out[-NUM_PADDING:].isnan().all()
    assert not out[:-NUM_PADDING].isnan().any()
    fresh = paged_prefill(**step)
    assert fresh[-NUM_PADDING:].eq(0).all()
    assert torch.equal(fresh[:-NUM_PADDING], out[:-NUM_PADDING])


def test_a_larger_maximum_changes_nothing() -> None:
    """A CUDA graph is captured for more queries a sequence than a step may have."""
    step = made(((0, 5), (9, 2)))
    assert torch.equal(paged_prefill(**step | {"max_query_len": 64}), paged_prefill(**step))


def test_lists_of_all_blocks_are_causality_whatever_their_order() -> None:
    step = made(((10, 30),), heads=(1, 1))
    visits = lists([[[(0, False), (1, False)], [(1, False), (0, False)]]], 16, 32)
    expected = paged_prefill(**step)
    assert torch.allclose(paged_prefill(**step | {"block_lists": visits}), expected, rtol=1e-5, atol=1e-6)


def test_a_full_block_shows_what_lies_behind_and_a_missing_one_nothing() -> None:
    """Each query of a prompt of 16 tokens sees all of them, as a prefix of both directions; those after it
    see nothing, and are zero."""
    step = made(((0, 32),), heads=(1, 1))
    visits = lists([[[(0, True)], []]], 16, 16)
    seen = paged_prefill(**step | {"block_lists": visits})
    last = paged_prefill(**step)[15]
    alone = paged_prefill(**step | {"block_lists": visits, "query": step["query"][15:16].expand(35, -1, -1)})
    assert torch.allclose(alone[0], last, rtol=1e-5, atol=1e-6)
    assert torch.allclose(seen[15], last, rtol=1e-5, atol=1e-6)
    assert seen[16:].eq(0).all()


def test_a_poisoned_query_leaves_its_neighbours_alone() -> None:
    clean, poisoned = made(((0, 6),)), made(((0, 6),))
    poisoned["query"][2, 1] = float("nan")
    expected, computed = paged_prefill(**clean), paged_prefill(**poisoned)
    assert computed[2, 1].isnan().all()
    computed[2, 1] = expected[2, 1]
    assert torch.equal(computed, expected)


@pytest.mark.parametrize(
    ("heads", "list_sizes", "expected"),
    [
        (8, None, (32, 128, 64)),  # 4 heads a query
        (14, None, (18, 128, 64)),  # 7: 126 of 128 rows are used
        (512, None, (1, 256, 64)),  # a group larger than the tile
        (2, None, (128, 128, 64)),
        (8, (64, 128), (32, 128, 64)),
        (8, (12, 48), (12, 64, 16)),  # 12 of up to 32 queries; 16 of up to 64 keys
    ],
)
def test_a_tile_is_whole_queries_and_a_block_of_lists_whole_tiles(
    heads: int, list_sizes: tuple[int, int] | None, expected: tuple[int, int, int]
) -> None:
    tile = AttentionTile(128, 64, 8, 3)
    constants = prefill_constants((1, heads, 64), CACHE, torch.float16, tile, list_sizes=list_sizes)
    assert (constants["QUERIES"], constants["ROWS"], constants["KEYS"]) == expected


class Launches:
    """Stands for the kernel: keeps grid and constants."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[int, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.seen.append((grid, constants))

        return launch


def test_the_launch_depends_on_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the meta device have no values: to ask for one raises."""
    launches = Launches()
    monkeypatch.setattr(attention_prefill, "_prefill", launches)
    step = made(((0, 2), (40, 8)), torch.device("cpu"), heads=(8, 2), blocks=(16, 32))
    meta = {name: x.to("meta") if isinstance(x, Tensor) else x for name, x in step.items()}
    visits = step["block_lists"]
    tensors = (x.to("meta") for x in (visits.num_visits, visits.key_blocks, visits.is_full))
    paged_prefill(**meta | {"tile": None, "block_lists": BlockLists(16, 32, *tensors)})
    ((grid, constants),) = launches.seen
    assert grid == (2, 2, 2)  # 8 queries, 4 a tile; key heads; sequences
    assert (constants["QUERIES"], constants["ROWS"], constants["KEYS"]) == (4, 16, 16)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_prefill, "_prefill", Launches())
    step = made(((0, 20),))
    query, k_cache = step["query"], step["k_cache"]
    three = {name: k_cache.expand(-1, 3, -1, -1).contiguous() for name in ("k_cache", "v_cache")}
    with pytest.raises(ValueError, match="the heads of a query must lie one behind the other"):
        paged_prefill(**step | {"query": query.transpose(0, 1).contiguous().transpose(0, 1)})
    with pytest.raises(ValueError, match="the caches must be contiguous and of one shape"):
        paged_prefill(**step | {"k_cache": k_cache[:1]})
    with pytest.raises(ValueError, match="must both have scales, or neither"):
        paged_prefill(**step | {"k_scale": torch.ones(k_cache.shape[:3])})
    with pytest.raises(ValueError, match="4 heads cannot share 3 key heads"):
        paged_prefill(**step | three | {"query": query.new_zeros(20, 4, 64)})
    with pytest.raises(ValueError, match="blocks of 24 keys: not a multiple of 16"):
        paged_prefill(**step | {"block_lists": lists([[[(0, False)]]], 32, 24)})
    with pytest.raises(ValueError, match="lists of 1 blocks do not hold 20 queries"):
        paged_prefill(**step | {"block_lists": lists([[[(0, False)]]], 16, 32)})
