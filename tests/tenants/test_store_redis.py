"""What only the Redis store can meet: foreign bytes, silence, a restart; and what a look-up costs."""

import asyncio
import json
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.redis_client import connect
from tenants.store import CorruptRecord, StoreUnavailable
from tenants.store_redis import RedisTenantStore
from tests.builders_tenants import a_key, a_tenant

TENANTS = "headrace:{directory}:tenants"
KEYS = "headrace:{directory}:keys"


class Bomb:
    """Says so if anybody unpickles it."""

    def __reduce__(self) -> tuple:
        return pytest.fail, ("a pickle from Redis was loaded",)


FOREIGN = {
    "a pickle": pickle.dumps(Bomb()),
    "no JSON": b"\xff\x00",
    "another schema": b'{"tenant_id":"acme"}',
    "a wrong type": b'{"tenant_id":"acme","name":1,"tier":"free","created_at":1.0}',
    "an id that is none": b'{"tenant_id":"A B","name":"x","tier":"free","created_at":1.0}',
    "deep nesting": b"[" * 100_000,
    "nothing": b"",
}


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
async def test_foreign_bytes_for_a_tenant_are_told_without_their_content(redis: Redis, value: bytes) -> None:
    store = RedisTenantStore(redis)
    await redis.hset(TENANTS, "acme", value)
    for call in (store.get_tenant("acme"), store.list_tenants()):
        with pytest.raises(CorruptRecord) as caught:
            await call
        assert str(caught.value) == f"a value in {TENANTS} is no Tenant"


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
async def test_foreign_bytes_for_a_key_open_no_door(redis: Redis, value: bytes) -> None:
    store = RedisTenantStore(redis)
    await store.create_tenant(a_tenant())
    await store.create_key(a_key())
    await redis.hset(KEYS, a_key().key_hash, value)
    with pytest.raises(CorruptRecord):
        await store.list_keys("acme")
    if value == FOREIGN["an id that is none"]:
        assert await store.find_key(a_key().key_hash) is None  # it names a tenant that is not there
        return
    with pytest.raises(CorruptRecord, match="is no ApiKey"):
        await store.find_key(a_key().key_hash)


async def test_a_value_that_belongs_to_another_hash_opens_no_door(redis: Redis) -> None:
    store = RedisTenantStore(redis)
    await store.create_tenant(a_tenant())
    await redis.hset(KEYS, "f" * 64, msgspec.json.encode(a_key(1)))
    with pytest.raises(CorruptRecord, match="another key"):
        await store.find_key("f" * 64)


async def test_a_key_of_another_redis_type_is_corrupt(redis: Redis) -> None:
    store = RedisTenantStore(redis)
    await redis.set(TENANTS, pickle.dumps(Bomb()))
    for call in (store.get_tenant("acme"), store.list_tenants(), store.create_tenant(a_tenant())):
        with pytest.raises(CorruptRecord, match="another type"):
            await call
    with pytest.raises(CorruptRecord, match="another type"):
        await store.list_keys("acme")


async def test_values_are_plain_json_and_hold_no_key(redis: Redis) -> None:
    store = RedisTenantStore(redis)
    await store.create_tenant(a_tenant())
    await store.create_key(a_key(scopes=("inference",)))
    stored = json.loads(await redis.hget(KEYS, a_key().key_hash))
    assert stored == {
        "key_id": "key_0000000000000001",
        "tenant_id": "acme",
        "key_hash": a_key().key_hash,
        "scopes": ["inference"],
        "hint": "wxyz",
        "created_at": 1.0,
        "expires_at": None,
    }


async def test_everything_lies_in_one_slot_and_nothing_expires(redis: Redis) -> None:
    store = RedisTenantStore(redis)
    await store.create_tenant(a_tenant())
    await store.create_key(a_key())
    names = await redis.keys("*")
    assert len(names) == 3
    assert all(name.startswith(b"headrace:{directory}:") for name in names)
    assert [await redis.ttl(name) for name in names] == [-1, -1, -1]


async def test_a_look_up_is_one_command(redis: Redis) -> None:
    store = RedisTenantStore(redis)
    await store.create_tenant(a_tenant())
    await store.create_key(a_key())
    await store.find_key(a_key().key_hash)  # the script is known from here on
    before = (await redis.info("stats"))["total_commands_processed"]
    await store.find_key(a_key().key_hash)
    after = (await redis.info("stats"))["total_commands_processed"]
    commands_in_script = 2
    assert after - before == 1 + 1 + commands_in_script  # the first INFO, EVALSHA, and its two HGET


async def test_a_server_that_forgot_the_scripts_is_told_again(redis: Redis) -> None:
    store = RedisTenantStore(redis)
    await store.create_tenant(a_tenant())
    await store.create_key(a_key())
    await redis.script_flush()
    assert await store.find_key(a_key().key_hash) == (a_key(), a_tenant())


@pytest.fixture
def mute_url(tmp_path: Path) -> Iterator[str]:
    """Where connections are taken and nothing is ever said."""
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        yield f"unix://{path}"


async def test_one_deadline_covers_a_whole_call(mute_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.store_redis.CALL_TIMEOUT_S", 0.01)
    async with connect(mute_url) as client:
        with pytest.raises(StoreUnavailable, match="Redis did not answer within 10 ms"):
            await RedisTenantStore(client).find_key("0" * 64)


async def test_a_cancellation_that_comes_with_the_answer_is_not_swallowed(redis: Redis) -> None:
    """With a time-out of its own redis-py hands out the answer instead, in about half of these."""
    for turns in range(200):
        call = asyncio.ensure_future(redis.get("k"))
        for _ in range(turns % 20):
            await asyncio.sleep(0)
        if not call.done():
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


async def test_no_server_is_unavailable_at_once(tmp_path: Path) -> None:
    client = connect(f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await RedisTenantStore(client).get_tenant("acme")
    await client.aclose()


async def test_the_record_outlives_a_restart_and_so_does_the_client(tmp_path: Path) -> None:
    server = RedisServer.start(tmp_path, tmp_path)
    client = connect(server.url)
    store = RedisTenantStore(client)
    await store.create_tenant(a_tenant())
    await store.create_key(a_key())
    server.stop()
    with pytest.raises(StoreUnavailable):
        await store.get_tenant("acme")
    server = RedisServer.start(tmp_path, tmp_path)
    assert await store.find_key(a_key().key_hash) == (a_key(), a_tenant())
    await client.aclose()
    server.stop()


async def test_more_callers_than_connections_wait_their_turn(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.store_redis.CALL_TIMEOUT_S", 10)  # a busy machine is no matter here
    redis.connection_pool.timeout = 10
    store = RedisTenantStore(redis)
    await store.create_tenant(a_tenant())
    await store.create_key(a_key())
    found = await asyncio.gather(*(store.find_key(a_key().key_hash) for _ in range(100)))
    assert found == [(a_key(), a_tenant())] * 100
