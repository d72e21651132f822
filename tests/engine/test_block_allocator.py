"""Block tables: what a request would take, and that pool, cache and tables are checked as one."""

from __future__ import annotations

import pytest

from engine.block_allocator import BlockAllocator
from engine.block_pool import IntegrityError
from engine.request_state import RequestState
from tests.builders import make_config, make_request


def make_state(request_id: str, prompt: int | range) -> RequestState:
    return RequestState(make_request(request_id, prompt), make_config(), arrival_order=0, now=0.0)


def compute(allocator: BlockAllocator, state: RequestState) -> None:
    """As one step over all of the prompt would."""
    allocator.adopt(state, allocator.match(state))
    allocator.grow(state, state.num_computed_tokens, state.num_tokens)
    state.num_computed_tokens = state.num_tokens
    allocator.register(state)


def test_cached_blocks_that_nobody_holds_are_taken_like_free_ones_and_held_ones_cost_nothing() -> None:
    allocator = BlockAllocator(make_config())
    first, second = make_state("first", range(12)), make_state("second", range(18))
    compute(allocator, first)
    matched = allocator.match(second)
    assert matched == [1, 2, 3]
    assert allocator.num_taken(second, matched, 18) == 2
    allocator.release(first)
    assert allocator.num_taken(second, matched, 18) == 5


def test_a_resumed_requests_hits_in_its_output_are_not_prompt_tokens() -> None:
    allocator = BlockAllocator(make_config())
    compute(allocator, make_state("first", range(12)))
    request = make_request("resumed", range(6), max_tokens=9, output_token_ids=tuple(range(6, 12)))
    resumed = RequestState(request, make_config(), arrival_order=1, now=0.0)
    compute(allocator, resumed)
    assert (resumed.block_table[:2], resumed.num_cached_tokens) == ([1, 2], 6)


def test_the_integrity_check_sees_a_holder_that_is_not_counted() -> None:
    allocator, state = BlockAllocator(make_config()), make_state("a", 9)
    compute(allocator, state)
    allocator.check_integrity([state])
    with pytest.raises(IntegrityError, match="block 1 has ref count 1, but 0 holders"):
        allocator.check_integrity([])


def test_the_integrity_check_sees_a_child_whose_parent_was_forgotten() -> None:
    allocator, state = BlockAllocator(make_config()), make_state("a", 9)
    compute(allocator, state)
    allocator.cache.forget(1)
    with pytest.raises(IntegrityError, match="block 2 is cached without its parent"):
        allocator.check_integrity([state])
