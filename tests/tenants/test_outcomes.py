"""Outcomes of requests with a key of their client's: one suite, both stores."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from tenants.outcomes.outcome import KEEP_S, LEASE_S, Begun, Finished, OutcomeStore, Reused, Running, TooLarge
from tests.tenants.outcome_stores import MemoryStore, RedisStore, Store, a_mark

MARK = a_mark()
SEALED = bytes(range(256))


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis: Redis) -> Store:
    return MemoryStore() if request.param == "memory" else RedisStore(redis)


@pytest.fixture
def outcomes(store: Store) -> OutcomeStore:
    return store.outcomes


async def test_who_asks_first_owns_it_and_others_hear_for_how_long_it_runs(store: Store) -> None:
    assert await store.outcomes.begin(MARK, "a") == Begun()
    await store.pass_time(4)
    found = await store.outcomes.begin(MARK, "b")
    assert isinstance(found, Running)
    assert 4 <= found.running_s < 4 + LEASE_S


async def test_of_many_at_once_one_owns_it(outcomes: OutcomeStore) -> None:
    found = await asyncio.gather(*(outcomes.begin(MARK, f"owner {number}") for number in range(30)))
    assert sum(isinstance(one, Begun) for one in found) == 1
    assert sum(isinstance(one, Running) for one in found) == 29


async def test_afterwards_everybody_gets_the_outcome(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    assert await outcomes.finish(MARK, "a", SEALED)
    for owner in ("a", "b"):
        assert await outcomes.begin(MARK, owner) == Finished(SEALED)


async def test_one_too_large_is_remembered_as_that(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    assert await outcomes.finish(MARK, "a", None)
    assert await outcomes.begin(MARK, "b") == TooLarge()


@pytest.mark.parametrize("sealed", [SEALED, None])
async def test_it_is_kept_for_a_day(store: Store, sealed: bytes | None) -> None:
    await store.outcomes.begin(MARK, "a")
    await store.outcomes.finish(MARK, "a", sealed)
    await store.pass_time(KEEP_S - 60)
    assert await store.outcomes.begin(MARK, "b") != Begun()
    await store.pass_time(60)
    assert await store.outcomes.begin(MARK, "b") == Begun()


async def test_a_failure_frees_the_key_for_any_body(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    assert await outcomes.fail(MARK, "a")
    assert await outcomes.begin(a_mark(body="another"), "b") == Begun()


async def test_another_body_is_refused_whatever_the_first_one_does(outcomes: OutcomeStore) -> None:
    other = a_mark(body="another")
    await outcomes.begin(MARK, "a")
    assert await outcomes.begin(other, "b") == Reused()
    await outcomes.finish(MARK, "a", SEALED)
    assert await outcomes.begin(other, "b") == Reused()


async def test_tenants_and_keys_know_nothing_of_each_other(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    await outcomes.finish(MARK, "a", SEALED)
    assert await outcomes.begin(a_mark(tenant_id="globex"), "b") == Begun()
    assert await outcomes.begin(a_mark(key="another"), "c") == Begun()


async def test_an_owner_that_renews_keeps_it(store: Store) -> None:
    await store.outcomes.begin(MARK, "a")
    for _ in range(3):
        await store.pass_time(LEASE_S / 2)
        assert await store.outcomes.renew(MARK, "a")
    found = await store.outcomes.begin(MARK, "b")
    assert isinstance(found, Running)
    assert found.running_s >= 1.5 * LEASE_S


async def test_an_owner_that_does_not_renew_has_lost_it(store: Store) -> None:
    await store.outcomes.begin(MARK, "a")
    await store.pass_time(LEASE_S)
    assert not await store.outcomes.renew(MARK, "a")
    assert not await store.outcomes.finish(MARK, "a", SEALED)
    assert not await store.outcomes.fail(MARK, "a")
    assert await store.outcomes.begin(MARK, "b") == Begun()


@pytest.mark.parametrize("has_ended", [False, True])
async def test_who_lost_it_changes_nothing_of_the_next_one_s(store: Store, has_ended: bool) -> None:
    outcomes = store.outcomes
    await outcomes.begin(MARK, "a")
    await store.pass_time(LEASE_S)
    await outcomes.begin(MARK, "b")
    if has_ended:
        await outcomes.finish(MARK, "b", SEALED)
    assert not await outcomes.renew(MARK, "a")
    assert not await outcomes.finish(MARK, "a", b"something else")
    assert not await outcomes.finish(MARK, "a", None)
    assert not await outcomes.fail(MARK, "a")
    assert await outcomes.finish(MARK, "b", SEALED) is not has_ended
    assert await outcomes.begin(MARK, "c") == Finished(SEALED)


async def test_an_outcome_is_final(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    await outcomes.finish(MARK, "a", SEALED)
    assert not await outcomes.renew(MARK, "a")
    assert not await outcomes.finish(MARK, "a", b"something else")
    assert not await outcomes.fail(MARK, "a")
    assert await outcomes.begin(MARK, "b") == Finished(SEALED)
