"""What only the outcomes in Redis have: foreign data, a server that forgets, one that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError

from tenants.outcomes.outcome import KEEP_S, LEASE_S, Begun, Finished, InProgress, Kept
from tenants.outcomes.redis_outcomes import RedisOutcomes, record_key, stored_key
from tenants.redis_client import connect
from tenants.store import CorruptRecord, StoreUnavailable
from tests.tenants.outcome_stores import a_mark

MARK = a_mark()


async def test_a_record_lies_with_its_tenant_and_has_its_time(redis: Redis) -> None:
    outcomes = RedisOutcomes(redis)
    await outcomes.begin(MARK, "a")
    assert await redis.keys() == [b"headrace:{acme}:outcome:hash of k"]
    assert 0 < await redis.pttl(record_key(MARK)) <= LEASE_S * 1000
    await outcomes.finish(MARK, "a", b"sealed")
    assert LEASE_S * 1000 < await redis.pttl(record_key(MARK)) <= KEEP_S * 1000
    assert await redis.hgetall(record_key(MARK)) == {b"body": b"hash of b", b"sealed": b"sealed"}


async def test_each_call_is_one_command(redis: Redis) -> None:
    outcomes = RedisOutcomes(redis)
    for mark in (MARK, a_mark("another")):  # from the second on, the scripts are known
        await redis.config_resetstat()
        await outcomes.begin(mark, "a")
        await outcomes.renew(mark, "a")
        await outcomes.finish(mark, "a", b"sealed")
        await outcomes.fail(mark, "a")
    assert (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"] == 4


async def test_a_server_that_forgot_the_scripts_is_told_again(redis: Redis) -> None:
    outcomes = RedisOutcomes(redis)
    await outcomes.begin(MARK, "a")
    await redis.script_flush()
    assert await outcomes.finish(MARK, "a", b"sealed")
    await redis.script_flush()
    assert await outcomes.begin(MARK, "b") == Finished(b"sealed")


async def test_two_gateways_see_one_record(redis: Redis, redis_url: str) -> None:
    async with connect(redis_url) as other:
        assert await RedisOutcomes(redis).begin(MARK, "a") == Begun()
        assert await RedisOutcomes(redis).finish(MARK, "a", b"sealed")
        assert await RedisOutcomes(other).begin(MARK, "b") == Finished(b"sealed")


async def test_a_key_of_another_type_is_corrupt(redis: Redis) -> None:
    await redis.set(record_key(MARK), b"foreign")
    with pytest.raises(CorruptRecord, match="outcome:hash of k holds something else"):
        await RedisOutcomes(redis).begin(MARK, "a")


@pytest.mark.parametrize(
    ("hour", "count"), [("x", "1 1"), (None, "x"), (None, "1")], ids=["no hour", "no count", "no bytes"]
)
async def test_counts_that_are_not_ours_are_corrupt_and_nothing_is_changed(
    redis: Redis, hour: str | None, count: str
) -> None:
    outcomes = RedisOutcomes(redis)
    await outcomes.begin(MARK, "a")
    seconds, _ = await redis.time()
    await redis.hset(stored_key("acme"), hour or str(seconds // 3600), count)
    with pytest.raises(CorruptRecord):
        await outcomes.finish(MARK, "a", b"sealed")
    assert isinstance(await outcomes.begin(MARK, "b"), InProgress)


class TestCounts:
    """Of what is stored, by the hour."""

    async def test_are_one_field_an_hour_and_outlive_the_last_outcome(self, redis: Redis) -> None:
        for number in range(3):
            await finished(redis, f"{number}", b"x" * 10)
        counts = await redis.hvals(stored_key("acme"))
        assert sum(int(count.split()[0]) for count in counts) == 3
        assert sum(int(count.split()[1]) for count in counts) == 30
        assert len(counts) <= 2  # the hour may end just now
        assert KEEP_S * 1000 < await redis.pttl(stored_key("acme")) <= (KEEP_S + 3600) * 1000

    async def test_of_an_hour_whose_last_outcome_is_gone_are_dropped(self, redis: Redis) -> None:
        seconds, _ = await redis.time()
        hour = seconds // 3600
        full = {hour - 26: "10000 1", hour - 23: "9998 1"}  # far enough from the next hour
        await redis.hset(stored_key("acme"), mapping=full)
        assert [await finished(redis, f"{number}") for number in range(3)] == ["stored", "stored", "no_room"]
        assert str(hour - 26).encode() not in await redis.hkeys(stored_key("acme"))


async def finished(redis: Redis, key: str, sealed: bytes = b"sealed") -> Kept | None:
    outcomes = RedisOutcomes(redis)
    await outcomes.begin(a_mark(key), "a")
    return await outcomes.finish(a_mark(key), "a", sealed)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [(AuthenticationError("no"), "refused"), (BusyLoadingError("loading"), "refused")],
)
async def test_a_server_that_says_no_is_told_as_that(
    redis: Redis, error: RedisError, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr("redis.asyncio.client.Pipeline.execute", refuse)
    with pytest.raises(StoreUnavailable) as caught:
        await RedisOutcomes(redis).begin(MARK, "a")
    assert caught.value.trouble == trouble


@pytest.mark.parametrize(
    "foreign",
    [{"owner": "a", "since": "foreign"}, {"owner": "a"}],
    ids=["no time", "nothing"],
)
async def test_fields_that_are_not_ours_are_corrupt(redis: Redis, foreign: dict[str, str]) -> None:
    await redis.hset(record_key(MARK), mapping={"body": MARK.body_hash, **foreign})
    with pytest.raises(CorruptRecord):
        await RedisOutcomes(redis).begin(MARK, "b")


async def test_without_room_nothing_begins_and_a_lease_lives_on(redis: Redis) -> None:
    outcomes = RedisOutcomes(redis)
    await outcomes.begin(MARK, "a")
    before = (await redis.config_get("maxmemory"))["maxmemory"]
    await redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable) as caught:
            await outcomes.begin(a_mark("another"), "b")
        assert caught.value.trouble == "refused"
        with pytest.raises(StoreUnavailable):
            await outcomes.finish(MARK, "a", b"sealed")
        assert await outcomes.renew(MARK, "a")
    finally:
        await redis.config_set("maxmemory", before)
    assert await outcomes.finish(MARK, "a", b"sealed")


async def test_no_server_is_unavailable_at_once(tmp_path: Path) -> None:
    async with connect(f"unix://{tmp_path}/nobody.sock") as client:
        with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
            await RedisOutcomes(client).begin(MARK, "a")
    assert caught.value.trouble == "unreachable"


async def test_one_deadline_covers_a_whole_call(mute_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.outcomes.redis_outcomes.CALL_TIMEOUT_S", 0.01)
    async with connect(mute_url) as client:
        with pytest.raises(StoreUnavailable, match="did not answer in time") as caught:
            await RedisOutcomes(client).begin(MARK, "a")
    assert caught.value.trouble == "timeout"
