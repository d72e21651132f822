"""Why a prompt was not cached: each reason alone, where one ends and the next begins, and the bounds."""

from __future__ import annotations

import pytest

from engine.block_chain import NamedBlock
from engine.block_hash import BlockHash
from engine.block_pool import IntegrityError
from engine.prefix_history import PrefixHistory
from engine.prefix_stats import PrefixStats
from tests.builders import BLOCK_SIZE
from tests.engine.shelf import Shelf, chain_of

OTHER_ROOT = b"another tenant's"


def prompt_of(*words: int) -> list[int]:
    """Each word is a full block of one token id, repeated."""
    return [word for word in words for _ in range(BLOCK_SIZE)]


# --- the reasons, block size 4 -----------------------------------------------------------------


def test_a_first_prompt_is_cold_but_for_its_tail() -> None:
    assert Shelf().ask(range(10)) == PrefixStats(cold_tokens=8, below_block_tokens=2)


def test_the_last_block_of_a_prompt_that_ends_with_it_counts_as_below_a_block() -> None:
    shelf = Shelf()
    shelf.put(range(8))
    assert shelf.ask(range(8)) == PrefixStats(hit_tokens=4, below_block_tokens=4)


def test_a_prompt_shorter_than_a_block_is_all_below_a_block() -> None:
    assert Shelf().ask(range(3)) == PrefixStats(below_block_tokens=3)


def test_what_comes_behind_the_end_of_what_is_known_is_cold() -> None:
    shelf = Shelf()
    shelf.put(range(8))
    assert shelf.ask(range(13)) == PrefixStats(hit_tokens=8, cold_tokens=4, below_block_tokens=1)


def test_a_timestamp_at_the_top_shows_as_a_whole_prompt_that_diverged_there() -> None:
    shelf = Shelf()
    shelf.put([1, 2, 70, *range(100, 130)])
    assert shelf.ask([1, 2, 71, *range(100, 130)]) == PrefixStats(
        diverged_tokens=32, below_block_tokens=1, diverged_at=2
    )


def test_a_prompt_that_diverges_between_blocks_did_so_at_the_blocks_first_token() -> None:
    shelf = Shelf()
    shelf.put(prompt_of(1, 2, 3))
    assert shelf.ask(prompt_of(1, 2, 4, 5)) == PrefixStats(
        hit_tokens=8, diverged_tokens=4, below_block_tokens=4, diverged_at=8
    )


def test_a_prompt_that_shares_not_one_token_with_another_is_cold() -> None:
    shelf = Shelf()
    shelf.put(prompt_of(1, 2))
    assert shelf.ask(prompt_of(3, 4, 5)) == PrefixStats(cold_tokens=8, below_block_tokens=4)


def test_evicted_blocks_are_told_apart_from_new_ones_behind_them() -> None:
    shelf = Shelf()
    held = shelf.put(prompt_of(1, 2, 3))
    shelf.evict(held[1:])
    assert shelf.ask([*prompt_of(1, 2, 3), 3, 3, 3, 4, 5]) == PrefixStats(
        hit_tokens=4, evicted_tokens=8, cold_tokens=4, below_block_tokens=1
    )
    assert shelf.ask([*prompt_of(1, 2), 3, 3, 3, 4, 5]) == PrefixStats(
        hit_tokens=4, evicted_tokens=4, diverged_tokens=4, below_block_tokens=1, diverged_at=11
    )


def test_a_block_that_is_computed_again_is_no_ghost_any_more() -> None:
    shelf = Shelf()
    shelf.evict(shelf.put(prompt_of(1)))
    shelf.put(prompt_of(1))
    assert shelf.ask(prompt_of(1, 2)) == PrefixStats(hit_tokens=4, below_block_tokens=4)


def test_a_dropped_block_was_never_there() -> None:
    shelf = Shelf()
    first, second = shelf.put(prompt_of(1, 2))
    shelf.cache.drop(second)
    assert shelf.ask(prompt_of(1, 2, 3)) == PrefixStats(hit_tokens=4, cold_tokens=4, below_block_tokens=4)
    shelf.cache.drop(first)
    assert shelf.ask(prompt_of(1, 2, 3)) == PrefixStats(cold_tokens=8, below_block_tokens=4)


def test_nor_were_the_ghosts_behind_it() -> None:
    shelf = Shelf()
    first, *others = shelf.put(prompt_of(1, 2, 3))
    shelf.evict(others)
    shelf.cache.drop(first)
    assert shelf.ask(prompt_of(1, 2, 3, 4)) == PrefixStats(cold_tokens=12, below_block_tokens=4)


def test_a_cleared_cache_is_cold_and_keeps_its_figures() -> None:
    shelf = Shelf()
    held = shelf.put(prompt_of(1, 2))
    shelf.evict(held[1:])
    shelf.ask(prompt_of(1, 2, 3))
    shelf.cache.clear()
    assert shelf.ask(prompt_of(1, 2, 3)) == PrefixStats(cold_tokens=8, below_block_tokens=4)
    assert shelf.cache.stats == PrefixStats(
        hit_tokens=4, evicted_tokens=4, cold_tokens=8, below_block_tokens=8
    )


# --- other roots -------------------------------------------------------------------------------


def test_another_tenants_prompts_are_neither_hits_nor_ghosts_nor_compared_with() -> None:
    shelf = Shelf()
    held = shelf.put([1, 2, 3, 4, 5, 6, 7, 8])
    shelf.evict(held[1:])
    assert shelf.ask([1, 2, 3, 4, 5, 6, 7, 8, 9], OTHER_ROOT) == PrefixStats(
        cold_tokens=8, below_block_tokens=1
    )
    assert shelf.ask([1, 2, 9, 9, 9], OTHER_ROOT) == PrefixStats(cold_tokens=4, below_block_tokens=1)


# --- what a prompt is compared with --------------------------------------------------------------


def test_the_best_of_the_known_ways_is_the_one_that_was_left() -> None:
    shelf = Shelf()
    for prompt in ([1, 2, 3, 9], [1, 9, 9, 9], [9, 9, 9, 9]):
        shelf.put(prompt)
    assert shelf.ask([1, 2, 3, 4, 5]).diverged_at == 3


def test_only_the_eight_latest_are_compared() -> None:
    shelf = Shelf()
    shelf.put([1, 2, 3, 9])
    for last in range(7):
        shelf.put([1, 8, 8, last])
    assert shelf.ask([1, 2, 3, 4, 5]).diverged_at == 3
    shelf.put([1, 8, 8, 7])
    assert shelf.ask([1, 2, 3, 4, 5]).diverged_at == 1


def test_a_block_that_is_hit_is_among_the_latest_again() -> None:
    shelf = Shelf()
    shelf.put([1, 2, 3, 9])
    for last in range(7):
        shelf.put([1, 8, 8, last])
    shelf.ask([1, 2, 3, 9, 0])
    shelf.put([1, 8, 8, 7])
    assert shelf.ask([1, 2, 3, 4, 5]).diverged_at == 3


# --- the bounds ---------------------------------------------------------------------------------


def test_there_are_four_ghosts_for_each_block_of_the_pool_and_no_more() -> None:
    shelf = Shelf(num_blocks=2)
    for word in range(1, 10):
        shelf.evict(shelf.put([7, 7, word, word]))
    assert shelf.ask([7, 7, 1, 2, 0]).diverged_at == 2, "compared with a ghost"
    assert len(shelf.cache._history._ghosts) == 8


def test_beyond_the_ghosts_a_block_is_still_known_to_have_been_evicted() -> None:
    shelf = Shelf(num_blocks=1)
    for word in range(1, 8):
        shelf.evict(shelf.put(prompt_of(word)))
    assert shelf.ask(prompt_of(1, 1)) == PrefixStats(evicted_tokens=4, below_block_tokens=4)


def test_the_oldest_ghost_goes_first() -> None:
    history = PrefixHistory(BLOCK_SIZE, 100, max_ghosts=2)
    prompts = ([5, 1, 1, 1], [6, 1, 1, 1], [7, 1, 1, 1])
    for prompt in prompts:
        (block,) = chain_of(prompt)
        history.cached(block)
        history.evicted(block)
    history.check_integrity([])
    assert [diverged_at(history, [first, 2, 2, 2]) for first in (5, 6, 7)] == [None, 1, 1]


def diverged_at(history: PrefixHistory, prompt: list[int]) -> int | None:
    return history.explain(list(chain_of(prompt)), num_hits=0, num_tokens=5).diverged_at


def test_no_ghosts_at_all_is_a_bound_too() -> None:
    history = PrefixHistory(BLOCK_SIZE, 100, max_ghosts=0)
    (block,) = chain_of([1, 2, 3, 4])
    history.cached(block)
    history.evicted(block)
    history.check_integrity([])
    assert diverged_at(history, [1, 2, 3, 5]) is None


# --- the integrity check ------------------------------------------------------------------------


def make_history() -> tuple[PrefixHistory, NamedBlock, NamedBlock]:
    """One cached block, and behind it a ghost."""
    history = PrefixHistory(BLOCK_SIZE, 100, max_ghosts=1)
    first, second = chain_of(range(8))
    history.cached(first)
    history.cached(second)
    history.evicted(second)
    history.check_integrity([first])
    return history, first, second


def test_the_integrity_check_sees_a_ghost_that_is_cached() -> None:
    history, first, second = make_history()
    with pytest.raises(IntegrityError, match="a ghost is cached"):
        history.check_integrity([first, second])


def test_the_integrity_check_sees_what_is_known_and_is_neither_cached_nor_a_ghost() -> None:
    history, first, _ = make_history()
    history._ghosts.clear()
    with pytest.raises(IntegrityError, match="known blocks are not the cached ones and the ghosts"):
        history.check_integrity([first])


def test_the_integrity_check_sees_too_many_ghosts() -> None:
    history, first, _ = make_history()
    history._ghosts[BlockHash(b"one more")] = None
    with pytest.raises(IntegrityError, match="2 ghosts are more than 1"):
        history.check_integrity([first])


def test_the_integrity_check_sees_a_lost_child() -> None:
    history, first, second = make_history()
    del history._children[first.block_hash][second.block_hash]
    with pytest.raises(IntegrityError, match="the children of blocks are not the known blocks"):
        history.check_integrity([first])
