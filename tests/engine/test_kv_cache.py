"""The KV tensors: copied whole, cleared slot by slot or all at once."""

from __future__ import annotations

import pytest
import torch

from engine.attention_backend import KvShape
from engine.kv_cache import KvCache

SHAPE = KvShape(
    block_size=4, num_heads=4, num_kv_heads=2, head_dim=6, dtype=torch.float32, cache_dtype=torch.bfloat16
)


@pytest.fixture
def cache() -> KvCache:
    """Three layers of five blocks; a number in block b is b."""
    cache = KvCache(3, 5, SHAPE, torch.device("cpu"))
    for layer in cache.layers:
        for tensor in layer:
            tensor += torch.arange(5)[:, None, None, None]
    return cache


def contents(cache: KvCache) -> list[list[float]]:
    """The one number in each block, for every tensor."""
    return [
        [block.unique().item() for block in tensor]  # type: ignore[no-untyped-call]
        for layer in cache.layers
        for tensor in layer
    ]


def test_it_begins_empty_and_in_the_cache_s_type() -> None:
    cache = KvCache(3, 5, SHAPE, torch.device("cpu"))
    tensors = [tensor for layer in cache.layers for tensor in layer]
    assert len(tensors) == 6
    assert all(tensor.shape == (5, 2, 4, 6) and tensor.dtype == torch.bfloat16 for tensor in tensors)
    assert contents(cache) == [[0] * 5] * 6


def test_all_sources_are_read_before_any_destination_is_written(cache: KvCache) -> None:
    cache.copy_blocks([(1, 2), (2, 3), (3, 1)])
    assert contents(cache) == [[0, 3, 1, 2, 4]] * 6
    cache.copy_blocks([])
    assert contents(cache) == [[0, 3, 1, 2, 4]] * 6


def test_only_the_slots_named_are_cleared_in_every_layer_and_head(cache: KvCache) -> None:
    cache.clear_slots(torch.tensor([2 * 4 + 3, 4 * 4 + 0]))
    for layer in cache.layers:
        for tensor in layer:
            assert tensor[2, :, 3].eq(0).all()
            assert tensor[4, :, 0].eq(0).all()
            assert tensor.count_nonzero() == (4 * 4 - 2) * 2 * 6


def test_clearing_leaves_nothing_not_even_what_is_no_number(cache: KvCache) -> None:
    cache.layers[1][0][3] = float("nan")
    cache.clear()
    assert contents(cache) == [[0] * 5] * 6
