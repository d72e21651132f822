"""The prefix cache: what is matched, what gets a name, and that no child outlives its parent."""

from __future__ import annotations

from random import Random

import pytest

from engine.block_allocator import BlockAllocator
from engine.block_chain import NamedBlock
from engine.block_hash import BlockHash
from engine.block_pool import IntegrityError
from engine.prefix_cache import PrefixCache
from engine.prefix_stats import PrefixStats
from engine.request_state import RequestState
from engine.tape import prompt_hash
from tests.builders import make_config, make_core, make_request, make_scheduler, run_to_end, step, tokens_of
from tests.engine.loads import answer_to
from tests.engine.shelf import chain_of

A, B, C = CHAIN = tuple(chain_of(range(12)))


def make_cache() -> PrefixCache:
    """Block size 4; A → B → C lie in blocks 7, 8, 9."""
    cache = PrefixCache(4, num_blocks=10)
    for named, block in zip(CHAIN, (7, 8, 9), strict=True):
        cache.register(named, block)
    return cache


@pytest.mark.parametrize(
    ("num_tokens", "blocks"),
    [(1, []), (4, []), (5, [7]), (8, [7]), (9, [7, 8]), (13, [7, 8, 9]), (99, [7, 8, 9])],
)
def test_a_match_leaves_at_least_one_token_to_compute(num_tokens: int, blocks: list[int]) -> None:
    assert make_cache().match(CHAIN, num_tokens) == blocks


def test_a_match_ends_at_the_first_block_that_is_not_there() -> None:
    cache = make_cache()
    cache.forget(8)
    assert cache.match(CHAIN, 99) == [7]
    assert cache.match([B, C], 99) == []


def test_the_first_to_register_keeps_the_name() -> None:
    cache = make_cache()
    assert cache.register(C, 5) == 9
    assert cache.match(CHAIN, 99) == [7, 8, 9]


def test_a_forgotten_name_can_be_given_again() -> None:
    cache = make_cache()
    cache.forget(9)
    assert cache.register(C, 5) == 5
    assert cache.match(CHAIN, 99) == [7, 8, 5]


def test_a_block_has_children_while_one_of_them_is_cached() -> None:
    cache = make_cache()
    assert [cache.has_children(block) for block in (7, 8, 9)] == [True, True, False]
    cache.forget(9)
    assert [cache.has_children(block) for block in (7, 8, 9)] == [True, False, False]


def test_a_cleared_cache_matches_nothing_and_takes_the_same_names_again() -> None:
    cache = make_cache()
    cache.clear()
    cache.check_integrity()
    assert cache.match(CHAIN, 99) == []
    assert cache.register(A, 3) == 3


@pytest.mark.parametrize(
    "other",
    [
        B._replace(parent=b"another parent"),
        B._replace(token_ids=C.token_ids),
        B._replace(depth=2),
    ],
)
def test_a_name_that_stands_for_something_else_is_neither_hit_nor_twin(other: NamedBlock) -> None:
    cache = make_cache()
    assert cache.match([A, other, C], 99) == [7]
    assert cache.register(other, 5) is None
    assert cache.match(CHAIN, 99) == [7, 8, 9]
    cache.check_integrity()


def test_the_integrity_check_sees_a_child_without_its_parent() -> None:
    cache = make_cache()
    cache.check_integrity()
    cache.forget(8)
    with pytest.raises(IntegrityError, match="block 9 is cached without its parent"):
        cache.check_integrity()


def test_the_integrity_check_sees_a_parent_that_became_another() -> None:
    cache = make_cache()
    cache.forget(8)
    cache.register(B._replace(parent=C.block_hash, depth=3), 5)
    with pytest.raises(IntegrityError, match="block 9 is cached without its parent"):
        cache.check_integrity()


def test_the_integrity_check_sees_a_name_that_leads_elsewhere() -> None:
    cache = make_cache()
    cache._block_of[A.block_hash] = 8
    with pytest.raises(IntegrityError, match="block 7 is not where its name leads"):
        cache.check_integrity()


def test_the_integrity_check_sees_a_name_too_many() -> None:
    cache = make_cache()
    cache._block_of[BlockHash(b"no one's")] = 7
    with pytest.raises(IntegrityError, match="names and named blocks differ in number"):
        cache.check_integrity()


def test_the_integrity_check_sees_a_ghost_that_is_cached() -> None:
    cache = make_cache()
    cache._history.evicted(C)
    with pytest.raises(IntegrityError, match="a ghost is cached"):
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


# --- what is counted, block size 4 ---------------------------------------------------------


def test_the_counters_tell_every_reason() -> None:
    core = make_core({"*": (20,)}, num_blocks=4)
    for request_id, prompt in (
        ("cold", range(8)),
        ("diverged", [0, 1, 7, *range(100, 106)]),  # evicts both blocks of the first
        ("evicted", [*range(8), 9]),
        ("hit", [*range(8), 9]),
    ):
        core.add(make_request(request_id, prompt, max_tokens=1))
        run_to_end(core)
    counters = core.counters()
    assert counters.prefix_queries_tokens_total == 8 + 9 + 9 + 9
    assert counters.prefix_hits_tokens_total == 8
    assert counters.prefix_miss_cold_tokens_total == 4
    assert counters.prefix_miss_diverged_tokens_total == 8
    assert counters.prefix_miss_evicted_tokens_total == 8
    assert counters.prefix_miss_below_block_tokens_total == 4 + 1 + 1 + 1
    assert counters.prefix_attainable_hits_tokens_total == 16


def test_a_request_keeps_what_its_lookup_found() -> None:
    allocator = BlockAllocator(make_config())
    state = RequestState(make_request("a", range(9)), make_config(), arrival_order=0, now=0.0)
    assert state.prefix_lookup is None
    allocator.adopt(state, allocator.match(state))
    assert state.prefix_lookup == PrefixStats(cold_tokens=8, below_block_tokens=1)


def test_neither_a_resumed_request_nor_a_preempted_one_that_returns_is_looked_up() -> None:
    allocator = BlockAllocator(make_config())
    resumed = make_request("r", range(6), output_token_ids=(7, 8, 9))
    state = RequestState(resumed, make_config(), arrival_order=0, now=0.0)
    allocator.adopt(state, allocator.match(state))
    state = RequestState(make_request("p", range(6)), make_config(), arrival_order=1, now=0.0)
    for _ in range(2):
        allocator.adopt(state, allocator.match(state))
        allocator.release(state)
        state.preempt(now=0.0)
    assert allocator.cache.stats.queries_tokens == 6


def test_siblings_look_nothing_up() -> None:
    core = make_core({"*": (20,)})
    core.add(make_request("a", range(9), n=3))
    run_to_end(core)
    assert core.counters().prefix_queries_tokens_total == 9


def test_nor_does_a_sibling_that_was_preempted() -> None:
    allocator = BlockAllocator(make_config())
    leader = RequestState(make_request("a", range(9), n=2), make_config(), arrival_order=0, now=0.0)
    allocator.adopt(leader, allocator.match(leader))
    (sibling,) = leader.fork()
    sibling.preempt(now=0.0)
    allocator.adopt(sibling, allocator.match(sibling))
    assert sibling.prefix_lookup is None
    assert allocator.cache.stats.queries_tokens == 9


# --- two contents that share a name ---------------------------------------------------------


def test_a_hash_of_8_bits_gives_no_wrong_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape reads its prompt back from the blocks: with another prompt's KV it plays another answer."""
    monkeypatch.setattr("engine.block_hash._DIGEST_BYTES", 1)
    random = Random(8)
    prompts = [random_prompt(random, number) for number in range(5000)]
    core = make_core(
        {prompt_hash(prompt): answer_to(prompt)[:2] for prompt in prompts},
        num_blocks=200,
        max_num_batched_tokens=512,
    )
    wrong = 0
    for first in range(0, 5000, 50):
        batch = {str(number): prompts[number] for number in range(first, first + 50)}
        for request_id, prompt in batch.items():
            core.add(make_request(request_id, prompt, max_tokens=2))
        outputs = run_to_end(core)
        wrong += sum(tuple(tokens_of(outputs[key])) != answer_to(batch[key])[:2] for key in batch)
    assert wrong == 0
    assert len({prompt[:end] for prompt in prompts for end in range(4, 13, 4)}) > 256, "names are short"
    assert core.counters().prefix_hits_tokens_total > 5000


def random_prompt(random: Random, number: int) -> tuple[int, ...]:
    """Up to three full blocks of two token ids, then an end of its own."""
    shared = [random.randint(0, 1) for _ in range(4 * random.randint(0, 3))]
    return (*shared, number // 50, number % 50)
