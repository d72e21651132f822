"""Outcomes of requests with a key of their client's: one suite, both stores."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from tenants.outcomes.outcome import (
    KEEP_S,
    LEASE_S,
    Begun,
    Finished,
    InProgress,
    Kept,
    NoRoom,
    OutcomeStore,
    Reused,
    TooLarge,
)
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
    assert isinstance(found, InProgress)
    assert 4 <= found.running_s < 4 + LEASE_S


async def test_of_many_at_once_one_owns_it(outcomes: OutcomeStore) -> None:
    found = await asyncio.gather(*(outcomes.begin(MARK, f"owner {number}") for number in range(30)))
    assert sum(isinstance(one, Begun) for one in found) == 1
    assert sum(isinstance(one, InProgress) for one in found) == 29


async def test_afterwards_everybody_gets_the_outcome(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    assert await outcomes.finish(MARK, "a", SEALED) == "stored"
    for owner in ("a", "b"):
        assert await outcomes.begin(MARK, owner) == Finished(SEALED)


async def test_one_too_large_is_remembered_as_that(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    assert await outcomes.finish(MARK, "a", None) == "too_large"
    assert await outcomes.begin(MARK, "b") == TooLarge()


class TestRoom:
    """What a tenant has stored is bounded, by number and by bytes."""

    @pytest.fixture(autouse=True)
    def little_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("memory", "redis"):
            monkeypatch.setattr(f"tenants.outcomes.{module}_outcomes.MAX_OUTCOMES", 3)
            monkeypatch.setattr(f"tenants.outcomes.{module}_outcomes.MAX_STORED_BYTES", 1000)

    async def test_beyond_the_number_it_is_kept_that_there_was_none(self, outcomes: OutcomeStore) -> None:
        assert [await stored(outcomes, number) for number in range(5)] == [*["stored"] * 3, *["no_room"] * 2]
        assert await outcomes.begin(a_mark("2"), "b") == Finished(b"sealed")
        for mark in (a_mark("3"), a_mark("4")):
            assert await outcomes.begin(mark, "b") == NoRoom()
        assert await outcomes.begin(a_mark("3", body="another"), "b") == Reused()

    async def test_beyond_the_bytes_too_and_to_the_byte(self, outcomes: OutcomeStore) -> None:
        assert await stored(outcomes, 1, b"x" * 600) == "stored"
        assert await stored(outcomes, 2, b"x" * 401) == "no_room"
        assert await stored(outcomes, 3, b"x" * 400) == "stored"
        assert await stored(outcomes, 4, b"x") == "no_room"

    async def test_is_each_tenant_s_own(self, outcomes: OutcomeStore) -> None:
        for number in range(4):
            await stored(outcomes, number)
        assert await stored(outcomes, 1, tenant_id="globex") == "stored"

    async def test_what_failed_or_was_too_large_takes_none(self, outcomes: OutcomeStore) -> None:
        for number in range(5):
            assert await stored(outcomes, number, None) == "too_large"
            await outcomes.begin(a_mark(f"failed {number}"), "a")
            await outcomes.fail(a_mark(f"failed {number}"), "a")
        assert await stored(outcomes, 6) == "stored"

    async def test_is_there_again_once_they_are_gone(self, store: Store) -> None:
        for number in range(4):
            await stored(store.outcomes, number)
        await store.pass_time(KEEP_S - 3600)
        assert await stored(store.outcomes, 5) == "no_room"
        await store.pass_time(2 * 3600)
        assert await stored(store.outcomes, 6) == "stored"

    async def test_is_no_matter_to_who_lost_its_lease(self, store: Store) -> None:
        for number in range(3):
            await stored(store.outcomes, number)
        await store.outcomes.begin(MARK, "a")
        await store.pass_time(LEASE_S)
        assert await store.outcomes.finish(MARK, "a", SEALED) is None


async def stored(
    outcomes: OutcomeStore, number: int, sealed: bytes | None = b"sealed", tenant_id: str = "acme"
) -> Kept | None:
    """What is kept of a request that begins and ends at once."""
    mark = a_mark(str(number), tenant_id=tenant_id)
    assert await outcomes.begin(mark, "a") == Begun()
    return await outcomes.finish(mark, "a", sealed)


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
    assert isinstance(found, InProgress)
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
    assert await outcomes.finish(MARK, "b", SEALED) == (None if has_ended else "stored")
    assert await outcomes.begin(MARK, "c") == Finished(SEALED)


async def test_an_outcome_is_final(outcomes: OutcomeStore) -> None:
    await outcomes.begin(MARK, "a")
    await outcomes.finish(MARK, "a", SEALED)
    assert not await outcomes.renew(MARK, "a")
    assert not await outcomes.finish(MARK, "a", b"something else")
    assert not await outcomes.fail(MARK, "a")
    assert await outcomes.begin(MARK, "b") == Finished(SEALED)
