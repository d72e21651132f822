"""The prefix index: one suite, both stores."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from cluster.index.prefix_index import (
    ABORTS_TTL_S,
    ENTRY_TTL_S,
    INCARNATION_TTL_S,
    Changes,
    PrefixIndex,
    indexed,
)
from cluster.index.redis_index import BLOCKS_PER_SCRIPT
from cluster.link import Abort
from tests.cluster.index_stores import (
    NOBODY,
    ROOT,
    MemoryStore,
    RedisStore,
    Store,
    a_block,
    a_chain,
    evicted,
    stored,
)

CHAIN = a_chain(10)
TOLD = indexed(CHAIN)
A, B, C = 1, 0xFFFFFFFF, 0


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis: Redis) -> Store:
    return MemoryStore() if request.param == "memory" else RedisStore(redis)


@pytest.fixture
def index(store: Store) -> PrefixIndex:
    return store.index


@pytest.fixture
def limit_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the holders of an entry, and of the aborts left."""
    for module in ("memory", "redis"):
        for limit in ("MAX_HOLDERS", "MAX_ABORTS"):
            monkeypatch.setattr(f"cluster.index.{module}_index.{limit}", 3)


def test_every_fourth_block_of_a_chain_is_indexed() -> None:
    assert indexed(list(range(13))) == [3, 7, 11]
    assert indexed([0, 1, 2]) == []


# Look-up


async def test_each_replica_is_told_as_deep_as_it_holds_the_chain(index: PrefixIndex) -> None:
    await index.publish(A, stored(*TOLD), NOBODY)
    await index.publish(B, stored(*TOLD[:3]), NOBODY)
    assert await index.look_up(ROOT, CHAIN, [A, B, C]) == {A: 40, B: 12}


@pytest.mark.parametrize("depth", range(11))
async def test_any_depth_is_found(index: PrefixIndex, depth: int) -> None:
    await index.publish(A, stored(*TOLD[:depth]), NOBODY)
    await index.publish(B, stored(*TOLD[: 10 - depth]), NOBODY)
    found = await index.look_up(ROOT, CHAIN, [A, B])
    assert (found.get(A, 0), found.get(B, 0)) == (4 * depth, 40 - 4 * depth)


@pytest.mark.parametrize("num_blocks", [0, 1, 3, 4, 5, 39])
async def test_a_prompt_is_found_as_far_as_it_goes(index: PrefixIndex, num_blocks: int) -> None:
    await index.publish(A, stored(*TOLD), NOBODY)
    assert (await index.look_up(ROOT, CHAIN[:num_blocks], [A])).get(A, 0) == num_blocks // 4 * 4


async def test_a_prompt_that_parts_from_the_cached_one_is_found_up_to_there(index: PrefixIndex) -> None:
    await index.publish(A, stored(*TOLD), NOBODY)
    assert await index.look_up(ROOT, CHAIN[:22] + a_chain(5, first=1000), [A]) == {A: 20}


async def test_only_who_is_asked_for_is_told(index: PrefixIndex) -> None:
    """So a dead replica's claims count for nothing as soon as nobody is linked to it."""
    await index.publish(A, stored(*TOLD), NOBODY)
    assert await index.look_up(ROOT, CHAIN, [B]) == {}
    assert await index.look_up(ROOT, CHAIN, []) == {}


async def test_another_root_sees_nothing(index: PrefixIndex) -> None:
    await index.publish(A, stored(*TOLD), NOBODY)
    assert await index.look_up(b"another root", CHAIN, [A]) == {}


async def test_a_very_long_prompt_and_many_replicas_are_one_question(index: PrefixIndex) -> None:
    chain = a_chain(2048)
    for incarnation in range(64):
        await index.publish(incarnation, stored(*indexed(chain)[: 8 * incarnation]), NOBODY)
    found = await index.look_up(ROOT, chain, range(64))
    assert found == {incarnation: 32 * incarnation for incarnation in range(1, 64)}


# Publishing


async def test_publishing_counts_what_really_changed(index: PrefixIndex) -> None:
    assert await index.publish(A, stored(*TOLD), NOBODY) == 10
    assert await index.publish(A, stored(*TOLD), NOBODY) == 0
    assert await index.publish(B, evicted(*TOLD), NOBODY) == 0
    assert await index.publish(A, evicted(*TOLD[7:]), NOBODY) == 3
    assert await index.publish(A, evicted(*TOLD[7:]), NOBODY) == 0
    assert await index.publish(A, stored(*TOLD), NOBODY) == 3
    assert await index.publish(A, [], NOBODY) == 0


async def test_one_call_may_tell_of_several_roots_and_of_both_kinds(index: PrefixIndex) -> None:
    await index.publish(A, stored(*TOLD), NOBODY)
    other = b"another root"
    news = [Changes(ROOT, stored=(a_block(900),), evicted=tuple(TOLD[5:])), *stored(*TOLD, root=other)]
    assert await index.publish(A, news, NOBODY) == 1 + 5 + 10
    assert await index.look_up(ROOT, CHAIN, [A]) == {A: 20}
    assert await index.look_up(other, CHAIN, [A]) == {A: 40}


async def test_what_one_replica_evicts_the_others_still_hold(index: PrefixIndex) -> None:
    for incarnation in (A, B, C):
        await index.publish(incarnation, stored(*TOLD), NOBODY)
    await index.publish(B, evicted(*TOLD), NOBODY)
    assert await index.look_up(ROOT, CHAIN, [A, B, C]) == {A: 40, C: 40}


async def test_more_blocks_than_one_script_takes_are_all_told(index: PrefixIndex) -> None:
    chain = a_chain(2 * BLOCKS_PER_SCRIPT + 1)
    told = indexed(chain)
    assert await index.publish(A, stored(*told), NOBODY) == len(told)
    assert await index.look_up(ROOT, chain, [A]) == {A: len(chain)}
    assert await index.publish(A, evicted(*told), NOBODY) == len(told)
    assert await index.look_up(ROOT, chain, [A]) == {}


async def test_a_lost_entry_costs_hits_and_the_digest_finds_it(index: PrefixIndex) -> None:
    await index.publish(A, stored(*TOLD), NOBODY)
    await index.publish(A, evicted(TOLD[6]), NOBODY)
    assert (await index.look_up(ROOT, CHAIN, [A])).get(A, 0) in (24, 40)
    assert await index.publish(A, stored(*TOLD), NOBODY) == 1
    assert await index.look_up(ROOT, CHAIN, [A]) == {A: 40}


async def test_a_block_told_again_lives_on_with_all_its_holders(store: Store) -> None:
    index = store.index
    await index.publish(A, stored(*TOLD), NOBODY)
    await index.publish(B, stored(*TOLD), NOBODY)
    await store.pass_time(ENTRY_TTL_S - 10)
    await index.publish(A, stored(*TOLD[:4]), NOBODY)
    await store.pass_time(20)
    assert await index.look_up(ROOT, CHAIN, [A, B]) == {A: 16, B: 16}
    await store.pass_time(ENTRY_TTL_S)
    assert await index.look_up(ROOT, CHAIN, [A, B]) == {}


async def test_of_too_many_holders_who_told_last_are_kept(index: PrefixIndex, limit_of_3: None) -> None:
    for incarnation in (1, 2, 3, 1, 4):
        await index.publish(incarnation, stored(TOLD[0]), NOBODY)
    assert set(await index.look_up(ROOT, CHAIN, range(6))) == {3, 1, 4}


# Incarnations


async def test_a_number_is_claimed_once(store: Store) -> None:
    assert await store.index.claim(A)
    assert not await store.index.claim(A)
    assert await store.index.claim(B)


async def test_a_dead_one_s_number_is_free_when_its_entries_are_gone(store: Store) -> None:
    await store.index.claim(A)
    await store.pass_time(ENTRY_TTL_S - 10)
    await store.index.beat(B)
    assert not await store.index.claim(A)
    await store.pass_time(20)
    assert (await store.index.beat(B)).dead == NOBODY
    assert await store.index.claim(A)


async def test_who_beats_in_time_is_alive(store: Store) -> None:
    await store.index.claim(A)
    for _ in range(3):
        await store.pass_time(INCARNATION_TTL_S - 1)
        assert await store.index.beat(A) == (True, NOBODY, ())


async def test_who_was_not_known_or_beats_too_late_was_not_alive(store: Store) -> None:
    assert not (await store.index.beat(A)).was_alive
    await store.pass_time(INCARNATION_TTL_S)
    assert not (await store.index.beat(A)).was_alive
    assert (await store.index.beat(A)).was_alive


async def test_the_dead_are_told_to_who_lives(store: Store) -> None:
    for incarnation in (A, B, C):
        await store.index.claim(incarnation)
    await store.pass_time(INCARNATION_TTL_S)
    assert (await store.index.beat(A)).dead == {B, C}
    assert (await store.index.beat(B)).dead == {C}


async def test_the_dead_leave_the_entries_that_others_tell(index: PrefixIndex) -> None:
    for incarnation in (A, B, C):
        await index.publish(incarnation, stored(*TOLD), NOBODY)
    await index.publish(A, [Changes(ROOT, tuple(TOLD[:4]), tuple(TOLD[8:]))], frozenset({B}))
    assert await index.look_up(ROOT, CHAIN, [A]) == {A: 32}
    assert await index.look_up(ROOT, CHAIN, [C]) == {C: 40}
    assert await index.publish(B, stored(*TOLD), NOBODY) == 4 + 2  # those that it was taken out of


async def test_nobody_drops_himself_as_dead(index: PrefixIndex) -> None:
    assert await index.publish(A, stored(*TOLD), frozenset({A})) == 10
    assert await index.publish(A, stored(*TOLD), frozenset({A})) == 0
    assert await index.look_up(ROOT, CHAIN, [A]) == {A: 40}


# Aborts for a replica that cannot be called


async def test_aborts_are_read_once_in_order_and_by_nobody_else(index: PrefixIndex) -> None:
    await index.leave_aborts(A, [Abort("r1"), Abort("r2", 0)])
    await index.leave_aborts(A, [Abort("r3", 2)])
    await index.leave_aborts(A, [])
    assert (await index.beat(B)).aborts == ()
    assert (await index.beat(A)).aborts == (Abort("r1"), Abort("r2", 0), Abort("r3", 2))
    assert (await index.beat(A)).aborts == ()


async def test_aborts_that_nobody_reads_go(store: Store) -> None:
    await store.index.leave_aborts(A, [Abort("old")])
    await store.pass_time(ABORTS_TTL_S)
    assert (await store.index.beat(A)).aborts == ()
    await store.index.leave_aborts(B, [Abort("old")])
    await store.pass_time(ABORTS_TTL_S)
    await store.index.leave_aborts(B, [Abort("new")])
    assert (await store.index.beat(B)).aborts == (Abort("new"),)


async def test_of_too_many_aborts_the_newest_are_kept(index: PrefixIndex, limit_of_3: None) -> None:
    await index.leave_aborts(A, [Abort("r1"), Abort("r2")])
    await index.leave_aborts(A, [Abort("r3"), Abort("r4")])
    assert (await index.beat(A)).aborts == (Abort("r2"), Abort("r3"), Abort("r4"))
