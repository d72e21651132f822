"""The prefix cache: what is matched, what gets a name, and that no child outlives its parent."""

from __future__ import annotations

import pytest

from engine.block_hash import BlockHash
from engine.block_pool import IntegrityError
from engine.prefix_cache import PrefixCache
from tests.builders import make_core, make_request, make_scheduler, run_to_end, step

A, B, C = (BlockHash(letter * 16) for letter in (b"A", b"B", b"C"))


def make_cache() -> PrefixCache:
    """Block size 4; A → B → C lie in blocks 7, 8, 9."""
    cache = PrefixCache(4)
    for block_hash, parent, block in ((A, None, 7), (B, A, 8), (C, B, 9)):
        cache.register(block_hash, parent, block)
    return cache


@pytest.mark.parametrize(
    ("num_tokens", "blocks"),
    [(1, []), (4, []), (5, [7]), (8, [7]), (9, [7, 8]), (13, [7, 8, 9]), (99, [7, 8, 9])],
)
def test_a_match_leaves_at_least_one_token_to_compute(num_tokens: int, blocks: list[int]) -> None:
    assert make_cache().match([A, B, C], num_tokens) == blocks


def test_a_match_ends_at_the_first_block_that_is_not_there() -> None:
    cache = make_cache()
    cache.forget(8)
    assert cache.match([A, B, C], 99) == [7]
    assert cache.match([B, C], 99) == []


def test_the_first_to_register_keeps_the_name() -> None:
    cache = make_cache()
    assert cache.register(C, B, 5) == 9
    assert cache.match([A, B, C], 99) == [7, 8, 9]


def test_a_forgotten_name_can_be_given_again() -> None:
    cache = make_cache()
    cache.forget(9)
    assert cache.register(C, B, 5) == 5
    assert cache.match([A, B, C], 99) == [7, 8, 5]


def test_the_integrity_check_sees_a_child_without_its_parent() -> None:
    cache = make_cache()
    cache.check_integrity()
    cache.forget(8)
    with pytest.raises(IntegrityError, match="block 9 is cached without its parent"):
        cache.check_integrity()


def test_the_integrity_check_sees_a_name_that_leads_elsewhere() -> None:
    cache = make_cache()
    cache._block_of[A] = 8
    with pytest.raises(IntegrityError, match="block 7 is not where its name leads"):
        cache.check_integrity()


# --- in the scheduler, block size 4 --------------------------------------------------------


def test_a_second_request_starts_on_the_firsts_blocks_and_computes_the_rest() -> None:
    scheduler = make_scheduler()
    prompt = range(10)
    scheduler.add(make_request("first", prompt), now=0)
    assert step(scheduler).scheduled[0].block_table == (1, 2, 3)
    scheduler.add(make_request("second", prompt), now=0)
    second = step(scheduler).scheduled[1]
    assert second.block_table == (1, 2, 4)
    assert (second.num_computed_tokens, second.token_ids) == (8, (8, 9))


def test_a_block_gets_its_name_only_after_it_was_computed() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    scheduler.add(make_request("a", range(9)), now=0)
    scheduler.add(make_request("b", range(9)), now=0)
    plan = step(scheduler)
    assert [scheduled.num_computed_tokens for scheduled in plan.scheduled] == [0, 0]


def test_twins_are_merged_when_both_are_computed() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    scheduler.add(make_request("a", range(9)), now=0)
    scheduler.add(make_request("b", range(9)), now=0)
    assert [s.block_table for s in step(scheduler).scheduled] == [(1, 2, 3), (4, 5, 6)]
    assert [s.block_table for s in step(scheduler).scheduled] == [(1, 2, 3), (1, 2, 6)]
    assert scheduler.counters().blocks_in_use == 4


def test_output_continues_the_chain() -> None:
    core = make_core({"*": (20, 21, 22, 23, 24)})
    core.add(make_request("first", range(6), max_tokens=5))
    run_to_end(core)
    core.add(make_request("second", (*range(6), 20, 21, 22, 23, 24), max_tokens=1))
    assert run_to_end(core)["second"][0].num_cached_tokens == 8


def test_another_root_shares_nothing() -> None:
    core = make_core({"*": (20,)})
    core.add(make_request("first", range(9), hash_root=b"tenant 1"))
    run_to_end(core)
    core.add(make_request("second", range(9), hash_root=b"tenant 2"))
    assert run_to_end(core)["second"][0].num_cached_tokens == 0


def test_the_cache_can_be_off() -> None:
    core = make_core({"*": (20,)}, enable_prefix_caching=False)
    for request_id in ("first", "second"):
        core.add(make_request(request_id, range(9)))
        assert run_to_end(core)[request_id][0].num_cached_tokens == 0
    counters = core.counters()
    assert (counters.blocks_evictable, counters.prefix_queries_tokens_total) == (0, 0)


def test_each_request_is_looked_up_once() -> None:
    core = make_core({"*": (20,)})
    for request_id in ("first", "second"):
        core.add(make_request(request_id, range(9)))
        run_to_end(core)
    counters = core.counters()
    assert (counters.prefix_queries_tokens_total, counters.prefix_hits_tokens_total) == (18, 8)


def test_the_last_block_of_a_chain_is_evicted_first() -> None:
    core = make_core({"*": (20,)}, num_blocks=4)
    core.add(make_request("first", range(8), max_tokens=2))
    run_to_end(core)
    core.add(make_request("other", range(100, 107), max_tokens=1))
    run_to_end(core)
    core.add(make_request("second", range(8), max_tokens=1))
    assert run_to_end(core)["second"][0].num_cached_tokens == 4
