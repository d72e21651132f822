"""What only the Redis store can meet: foreign bytes, a server that forgets or falls silent; and its costs."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
from collections.abc import Iterator

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cluster.index.prefix_index import ABORTS_TTL_S, ENTRY_TTL_S, INCARNATION_TTL_S, IndexUnavailable, indexed
from cluster.index.redis_index import INCARNATIONS_KEY, RedisPrefixIndex, aborts_key, entries_of, pack
from cluster.link import Abort
from cluster.redis_server import RedisServer
from tenants.redis_client import connect
from tests.cluster.index_stores import NOBODY, ROOT, a_chain, evicted, stored

CHAIN = a_chain(10)
TOLD = indexed(CHAIN)
A, B = 0x01020304, 0x05060708


class Bomb:
    """Says so if anybody unpickles it."""

    def __reduce__(self) -> tuple:
        return pytest.fail, ("a pickle from Redis was loaded",)


FOREIGN = {
    "a pickle": pickle.dumps(Bomb()),
    "nothing": b"",
    "a piece of a number": b"\x01\x02\x03",
    "a number too long": pack([A]) + b"\x01",
    "numbers out of step": b"\x00" + pack([A, B, A]),
    "many numbers": pack(range(5000)),
    "deep nesting": b"\x91" * 100_000,
}
foreign = pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())


@pytest.fixture
def index(redis: Redis) -> RedisPrefixIndex:
    return RedisPrefixIndex(redis)


def key_of(block: bytes) -> bytes:
    return entries_of(ROOT).encode() + block


# Layout


async def test_an_entry_is_its_holders_under_the_block_s_hash(index: RedisPrefixIndex, redis: Redis) -> None:
    for incarnation in (A, B):
        await index.publish(incarnation, stored(TOLD[0]), NOBODY)
    assert await redis.keys() == [b"px:{726f6f74}:" + TOLD[0]]
    assert await redis.get(key_of(TOLD[0])) == b"\x01\x02\x03\x04\x05\x06\x07\x08"


async def test_the_last_holder_takes_the_entry_with_it(index: RedisPrefixIndex, redis: Redis) -> None:
    for incarnation in (A, B):
        await index.publish(incarnation, stored(*TOLD), NOBODY)
    await index.publish(A, evicted(*TOLD), frozenset({B}))
    assert await redis.keys() == []


async def test_the_dead_are_taken_out_on_the_way(index: RedisPrefixIndex, redis: Redis) -> None:
    for incarnation in (A, B):
        await index.publish(incarnation, stored(TOLD[0]), NOBODY)
    await index.publish(B, stored(TOLD[0]), frozenset({A}))
    assert await redis.get(key_of(TOLD[0])) == pack([B])


async def test_no_key_lives_for_ever(index: RedisPrefixIndex, redis: Redis) -> None:
    await index.claim(A)
    await index.beat(B)
    await index.publish(A, stored(*TOLD), NOBODY)
    await index.publish(B, stored(*TOLD), NOBODY)
    await index.publish(A, evicted(*TOLD[5:]), NOBODY)
    await index.leave_aborts(A, [Abort("r1")])
    left = {key: await redis.ttl(key) for key in await redis.keys()}
    assert len(left) == len(TOLD) + 2
    assert 0 < left.pop(aborts_key(A).encode()) <= ABORTS_TTL_S
    assert all(ENTRY_TTL_S - 60 < seconds <= ENTRY_TTL_S for seconds in left.values())


async def test_every_beat_keeps_the_set_of_incarnations(index: RedisPrefixIndex, redis: Redis) -> None:
    await index.claim(A)
    await redis.expire(INCARNATIONS_KEY, 100)
    await index.beat(A)
    assert await redis.ttl(INCARNATIONS_KEY) > 100


async def test_the_set_of_incarnations_is_swept(index: RedisPrefixIndex, redis: Redis) -> None:
    await redis.zadd(INCARNATIONS_KEY, {pack([number]): number for number in range(100)})
    await index.beat(A)
    assert await redis.zrange(INCARNATIONS_KEY, 0, -1) == [pack([A])]


# What it costs


@pytest.mark.parametrize(("depths", "max_reads"), [((1000, 1000), 10), ((650, 650), 10), ((650, 333), 20)])
async def test_a_look_up_is_one_command_and_reads_a_logarithm(
    index: RedisPrefixIndex, redis: Redis, depths: tuple[int, int], max_reads: int
) -> None:
    chain = a_chain(1000)
    for incarnation, depth in zip((A, B), depths, strict=True):
        await index.publish(incarnation, stored(*indexed(chain)[:depth]), NOBODY)
    await redis.config_resetstat()
    assert await index.look_up(ROOT, chain, [A, B]) == {A: 4 * depths[0], B: 4 * depths[1]}
    calls = {name: stats["calls"] for name, stats in (await redis.info("commandstats")).items()}
    assert calls.pop("cmdstat_getrange") <= max_reads
    assert calls == {"cmdstat_evalsha": 1, "cmdstat_config|resetstat": 1}


# Bytes that are not ours


@foreign
async def test_a_foreign_entry_hurts_nobody(index: RedisPrefixIndex, redis: Redis, value: bytes) -> None:
    await index.publish(A, stored(*TOLD), NOBODY)
    for block in TOLD:
        await redis.set(key_of(block), value)
    names_a = value == FOREIGN["a number too long"]
    assert await index.look_up(ROOT, CHAIN, [A, B]) == ({A: 40} if names_a else {})
    await index.publish(A, evicted(*TOLD), NOBODY)
    await index.publish(A, stored(*TOLD), NOBODY)
    assert (await index.look_up(ROOT, CHAIN, [A]))[A] == 40


async def test_random_bytes_in_entries_are_a_wrong_hint_at_worst(
    index: RedisPrefixIndex, redis: Redis
) -> None:
    rng = random.Random(0)
    for _ in range(50):
        await redis.mset(
            {key_of(block): rng.choice((pack([A]), b"")) + rng.randbytes(rng.randrange(40)) for block in TOLD}
        )
        found = await index.look_up(ROOT, CHAIN, [A, B])
        assert all(depth in range(4, 44, 4) for depth in found.values())


async def test_an_entry_of_another_redis_type_holds_nothing_and_is_replaced(
    index: RedisPrefixIndex, redis: Redis
) -> None:
    for block in TOLD:
        await redis.rpush(key_of(block), pickle.dumps(Bomb()))
    assert await index.look_up(ROOT, CHAIN, [A]) == {}
    assert await index.publish(A, evicted(*TOLD), NOBODY) == 0
    assert await index.publish(A, stored(*TOLD), NOBODY) == 10
    assert await index.look_up(ROOT, CHAIN, [A]) == {A: 40}


@foreign
async def test_a_foreign_abort_is_dropped_and_told_once(
    index: RedisPrefixIndex, redis: Redis, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = Abort("r1", 0)
    for _ in range(2):
        await redis.rpush(
            aborts_key(A), value, msgspec.msgpack.encode(good), msgspec.msgpack.encode(["r", "x"])
        )
        assert (await index.beat(A)).aborts == (good,)
    assert len(caplog.records) == 1


async def test_aborts_of_another_redis_type_are_dropped(index: RedisPrefixIndex, redis: Redis) -> None:
    await redis.set(aborts_key(A), pickle.dumps(Bomb()))
    assert (await index.beat(A)).aborts == ()
    await index.leave_aborts(A, [Abort("r1")])
    assert (await index.beat(A)).aborts == (Abort("r1"),)


@foreign
async def test_a_foreign_incarnation_is_nobody(index: RedisPrefixIndex, redis: Redis, value: bytes) -> None:
    await index.claim(A)
    (time_s, _) = await redis.time()
    await redis.zadd(INCARNATIONS_KEY, {value: time_s - INCARNATION_TTL_S - 1})
    assert await index.beat(A) == (True, NOBODY, ())


async def test_a_set_of_incarnations_that_is_none_is_told(index: RedisPrefixIndex, redis: Redis) -> None:
    await redis.set(INCARNATIONS_KEY, pickle.dumps(Bomb()))
    for call in (index.claim(A), index.beat(A)):
        with pytest.raises(IndexUnavailable, match="WRONGTYPE"):
            await call


@pytest.mark.parametrize("reply", [None, 1, b"x", [1], [[b"abcd"]], [[b"abcd", b"4"]], [[4, b"abcd"]]])
def test_an_answer_of_another_shape_is_refused(index: RedisPrefixIndex, reply: object) -> None:
    with pytest.raises(IndexUnavailable, match="something else"):
        index.read_look_up(reply)


# A server that forgets, fails or falls silent


async def test_forgotten_scripts_are_told_again(index: RedisPrefixIndex, redis: Redis) -> None:
    await index.claim(A)
    await redis.script_flush()
    assert await index.publish(A, stored(*TOLD), NOBODY) == 10
    await redis.script_flush()
    assert await index.look_up(ROOT, CHAIN, [A]) == {A: 40}
    await redis.script_flush()
    await index.leave_aborts(A, [Abort("r1")])
    await redis.script_flush()
    assert await index.beat(A) == (True, NOBODY, (Abort("r1"),))


async def test_a_flushed_server_knows_nothing_until_it_is_told(index: RedisPrefixIndex, redis: Redis) -> None:
    await index.claim(A)
    await index.publish(A, stored(*TOLD), NOBODY)
    await redis.flushall()
    assert await index.look_up(ROOT, CHAIN, [A]) == {}
    assert not (await index.beat(A)).was_alive
    assert await index.publish(A, stored(*TOLD), NOBODY) == 10
    assert await index.look_up(ROOT, CHAIN, [A]) == {A: 40}


async def test_a_look_up_rides_in_another_s_pipeline(index: RedisPrefixIndex, redis: Redis) -> None:
    async def ask() -> list[object]:
        async with redis.pipeline(transaction=False) as pipeline:
            pipeline.set("k", "v")
            index.queue_look_up(pipeline, ROOT, CHAIN, [A])
            index.queue_look_up(pipeline, ROOT, (), ())
            pipeline.get("k")
            return await pipeline.execute(raise_on_error=False)

    await index.publish(A, stored(*TOLD), NOBODY)
    done, found, nothing, value = await ask()
    assert (done, index.read_look_up(found), index.read_look_up(nothing), value) == (True, {A: 40}, {}, b"v")

    await redis.script_flush()
    done, found, nothing, value = await ask()
    assert (done, value) == (True, b"v")
    for reply in (found, nothing):
        with pytest.raises(IndexUnavailable, match="No matching script"):
            index.read_look_up(reply)
    (loading,) = asyncio.all_tasks() - {asyncio.current_task()}
    await loading
    _, found, nothing, _ = await ask()
    assert (index.read_look_up(found), index.read_look_up(nothing)) == ({A: 40}, {})


async def test_loading_that_fails_is_left_to_the_next_request(
    index: RedisPrefixIndex, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(scripts: object) -> None:
        raise RedisError("gone")

    reply = (await redis.pipeline(transaction=False).evalsha("0" * 40, 0).execute(raise_on_error=False))[0]
    monkeypatch.setattr("tenants.redis_script.Scripts.load", refuse)
    for _ in range(2):
        with pytest.raises(IndexUnavailable, match="No matching script"):
            index.read_look_up(reply)
        (loading,) = asyncio.all_tasks() - {asyncio.current_task()}
        await loading


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    home = tmp_path_factory.mktemp("px")
    server = RedisServer.start(home, home)
    yield server
    server.stop()


async def test_without_a_server_every_call_says_so(server: RedisServer) -> None:
    async with connect(server.url) as client:
        index = RedisPrefixIndex(client)
        await index.claim(A)
        server.stop()
        for call in (
            index.claim(A),
            index.beat(A),
            index.publish(A, stored(*TOLD), NOBODY),
            index.look_up(ROOT, CHAIN, [A]),
            index.leave_aborts(A, [Abort("r1")]),
        ):
            with pytest.raises(IndexUnavailable, match="cannot be asked"):
                await call


async def test_a_silent_server_is_not_waited_for(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(server.url) as client:
        index = RedisPrefixIndex(client)
        await index.publish(A, stored(*TOLD), NOBODY)
        os.kill(server.pid, signal.SIGSTOP)
        with monkeypatch.context() as patched:
            patched.setattr("cluster.index.redis_index.CALL_TIMEOUT_S", 0.01)
            with pytest.raises(IndexUnavailable) as caught:
                await index.look_up(ROOT, CHAIN, [A])
            assert type(caught.value.__cause__) is TimeoutError  # ours, not that of the client's socket
        os.kill(server.pid, signal.SIGCONT)
        assert await index.look_up(ROOT, CHAIN, [A]) == {A: 40}


async def test_a_number_that_is_too_big_is_an_error_of_ours(index: RedisPrefixIndex) -> None:
    with pytest.raises(OverflowError):
        await index.claim(2**32)
