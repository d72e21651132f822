"""What only the Redis store can meet: foreign bytes, silence, a restart; and what a look-up costs."""

import asyncio
import json
import pickle
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.audit import AuditEntry
from tenants.directory import additions
from tenants.redis_client import connect
from tenants.snapshot import first_contents
from tenants.store import CorruptRecord, StoreUnavailable
from tenants.store_redis import RedisTenantStore
from tests.builders_tenants import BY, a_key, a_tenant, a_tier, an_account, seed

ROOT = "headrace:{directory}:"
TIERS, TENANTS, KEYS = f"{ROOT}tiers", f"{ROOT}tenants", f"{ROOT}keys"


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


@pytest.fixture
async def store(record: RedisTenantStore) -> RedisTenantStore:
    """With one tenant and its key."""
    await record.create_tenant(a_tenant(), BY)
    await record.create_key(a_key(), BY)
    return record


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
async def test_foreign_bytes_for_a_tenant_are_told_without_their_content(
    redis: Redis, store: RedisTenantStore, value: bytes
) -> None:
    await redis.hset(TENANTS, "acme", value)
    for call in (
        store.get_tenant("acme"),
        store.list_tenants(),
        store.find_key(a_key().key_hash),
        store.put_tenant(a_tenant(), None, BY),
        store.snapshot(0.0),
    ):
        with pytest.raises(CorruptRecord) as caught:
            await call
        assert str(caught.value) == f"a value in {TENANTS} is no Tenant"


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize(
    ("place", "field", "kind"), [(KEYS, a_key().key_id, "ApiKey"), (TIERS, "paid", "Tier")]
)
async def test_foreign_bytes_for_a_key_or_a_tier_open_no_door(
    redis: Redis, store: RedisTenantStore, place: str, field: str, kind: str, value: bytes
) -> None:
    await redis.hset(place, field, value)
    for call in (store.find_key(a_key().key_hash), store.snapshot(0.0)):
        with pytest.raises(CorruptRecord) as caught:
            await call
        assert str(caught.value) == f"a value in {place} is no {kind}"


async def test_a_key_whose_networks_are_none_opens_no_door(redis: Redis, store: RedisTenantStore) -> None:
    junk = msgspec.json.encode({**msgspec.to_builtins(a_key()), "addresses": ["10.0.0.0/8", "anywhere"]})
    await redis.hset(KEYS, a_key().key_id, junk)
    with pytest.raises(CorruptRecord) as caught:
        await store.find_key(a_key().key_hash)
    assert str(caught.value) == f"a value in {KEYS} is no ApiKey"


@pytest.mark.parametrize("overrides", [{"weight": 0}, {"colour": "canary"}])
async def test_overrides_that_are_no_terms_name_their_tenant_and_nothing_is_guessed(
    redis: Redis, store: RedisTenantStore, overrides: dict
) -> None:
    await redis.hset(TENANTS, "acme", msgspec.json.encode(a_tenant(overrides=overrides)))
    with pytest.raises(CorruptRecord) as caught:
        await store.find_key(a_key().key_hash)
    assert str(caught.value) == "the overrides of tenant acme are no Terms"


@pytest.mark.parametrize(
    ("place", "field"),
    [(KEYS, a_key().key_id), (TENANTS, "acme"), (TIERS, "paid")],
    ids=["key", "tenant", "tier"],
)
async def test_a_row_that_is_missing_opens_no_door(
    redis: Redis, store: RedisTenantStore, place: str, field: str
) -> None:
    await redis.hdel(place, field)
    with pytest.raises(CorruptRecord, match=place):
        await store.find_key(a_key().key_hash)


async def test_a_row_that_belongs_to_another_id_opens_no_door(redis: Redis, store: RedisTenantStore) -> None:
    await redis.hset(TENANTS, "acme", msgspec.json.encode(a_tenant("other")))
    with pytest.raises(CorruptRecord, match="belongs to another id"):
        await store.find_key(a_key().key_hash)
    await redis.hset(f"{ROOT}hashes", "f" * 64, a_key().key_id)
    with pytest.raises(CorruptRecord, match="belongs to another key"):
        await store.find_key("f" * 64)


async def test_a_key_of_another_redis_type_is_corrupt(redis: Redis, store: RedisTenantStore) -> None:
    await redis.set(TENANTS, pickle.dumps(Bomb()))
    for call in (store.get_tenant("acme"), store.list_tenants(), store.create_tenant(a_tenant("b"), BY)):
        with pytest.raises(CorruptRecord, match="something else than ours"):
            await call


async def test_a_change_count_that_is_no_number_is_corrupt(redis: Redis, store: RedisTenantStore) -> None:
    await redis.set(f"{ROOT}changes", b"many")
    with pytest.raises(CorruptRecord, match="changes is no number"):
        await store.change_count()


@pytest.mark.parametrize("fields", [{"entry": b"{}"}, {"entry": pickle.dumps(Bomb())}, {"other": b"x"}])
async def test_a_foreign_entry_of_the_log_is_corrupt(
    redis: Redis, store: RedisTenantStore, fields: dict
) -> None:
    await redis.xadd(f"{ROOT}audit", fields)
    with pytest.raises(CorruptRecord, match="audit is no AuditEntry"):
        await store.list_audit()


async def test_values_are_plain_json_and_hold_no_key(redis: Redis, store: RedisTenantStore) -> None:
    stored = json.loads(await redis.hget(KEYS, a_key().key_id))
    assert stored == {
        "key_id": "key_0000000000000001",
        "tenant_id": "acme",
        "key_hash": a_key().key_hash,
        "scopes": ["inference"],
        "hint": "wxyz",
        "created_at": 1.0,
        "expires_at": None,
        "name": "",
        "limits": None,
        "addresses": [],
        "version": 1,
        "rotated_to": None,
    }


async def test_everything_lies_in_one_slot_and_nothing_expires(redis: Redis, store: RedisTenantStore) -> None:
    names = await redis.keys("*")
    assert all(name.startswith(b"headrace:{directory}:") for name in names)
    assert [await redis.ttl(name) for name in names] == [-1] * len(names)


async def test_nothing_of_what_was_deleted_is_left(redis: Redis, store: RedisTenantStore) -> None:
    async def rest() -> dict[bytes, object]:
        changing = {b"changes", b"audit"}
        names = [name for name in await redis.keys("*") if name.rpartition(b":")[2] not in changing]
        return {name: await redis.dump(name) for name in names}

    before = await rest()
    await store.create_tier(a_tier(), BY)
    await store.create_tenant(a_tenant("b", tier="gold"), BY)
    await store.put_tenant(a_tenant("b", tier="free"), None, BY)
    for number in (2, 3):
        await store.create_key(a_key(number, tenant_id="b"), BY)
    await store.put_key(a_key(2, tenant_id="b", name="x"), None, BY)
    assert await rest() != before
    await store.delete_key(a_key(3).key_id, None, BY)
    await store.delete_tenant("b", None, BY)
    await store.delete_tier("gold", None, BY)
    assert await rest() == before


async def test_the_log_is_dated_by_redis_and_bounded(redis: Redis, store: RedisTenantStore) -> None:
    seconds, micros = await redis.time()
    entry = AuditEntry(entry_id="9-9", at=1.0, actor=BY, action="budget.reset", target="acme", changes={})
    await store.note(entry)
    latest = (await store.list_audit(limit=1))[0]
    assert latest.at >= seconds + micros // 1000 / 1000
    assert latest == msgspec.structs.replace(entry, entry_id=latest.entry_id, at=latest.at)
    async with redis.pipeline(transaction=False) as pipeline:
        for _ in range(10_200):
            pipeline.xadd(f"{ROOT}audit", {"entry": b"{}"})
        await pipeline.execute()
    await store.put_tenant(a_tenant(name="New"), None, BY)
    assert 10_000 <= await redis.xlen(f"{ROOT}audit") < 10_200


async def test_a_look_up_is_one_command(redis: Redis, store: RedisTenantStore) -> None:
    await store.find_key(a_key().key_hash)  # the script is known from here on
    before = (await redis.info("stats"))["total_commands_processed"]
    await store.find_key(a_key().key_hash)
    after = (await redis.info("stats"))["total_commands_processed"]
    commands_in_script = 5
    assert (
        after - before == 1 + 1 + commands_in_script
    )  # the first INFO, EVALSHA, and its EXISTS and four HGET


async def test_a_server_that_forgot_the_scripts_is_told_again(redis: Redis, store: RedisTenantStore) -> None:
    await redis.script_flush()
    assert await store.find_key(a_key().key_hash) == an_account()
    await redis.script_flush()
    assert (await store.put_tenant(a_tenant(), 1, BY)).version == 2


async def test_without_memory_redis_takes_nothing_new_but_a_deletion_whole(
    redis: Redis, store: RedisTenantStore
) -> None:
    await redis.config_set("maxmemory", 1)
    try:
        before = {name: await redis.dump(name) for name in await redis.keys("*")}
        for creation in (store.create_tenant(a_tenant("b"), BY), store.create_key(a_key(2), BY)):
            with pytest.raises(StoreUnavailable, match=r"Redis refused: .*maxmemory") as caught:
                await creation
            assert caught.value.trouble == "refused"
        assert {name: await redis.dump(name) for name in await redis.keys("*")} == before
        assert await store.find_key(a_key().key_hash) == an_account()
        await store.delete_tenant("acme", None, BY)
        assert await store.find_key(a_key().key_hash) is None
        assert (await store.list_audit(limit=1))[0].action == "tenant.delete"
    finally:
        await redis.config_set("maxmemory", 0)


async def test_a_record_that_came_back_empty_answers_nothing_and_takes_nothing(
    redis: Redis, store: RedisTenantStore
) -> None:
    await redis.flushall()
    entry = AuditEntry(entry_id="", at=0.0, actor=BY, action="budget.reset", target="acme", changes={})
    for call in (
        store.find_key(a_key().key_hash),
        store.get_tenant("acme"),
        store.list_tenants(),
        store.change_count(),
        store.list_audit(),
        store.snapshot(0.0),
        store.create_tenant(a_tenant("b"), BY),
        store.delete_tenant("acme", None, BY),
        store.note(entry),
    ):
        with pytest.raises(StoreUnavailable, match="came back empty") as caught:
            await call
        assert caught.value.trouble == "empty"
    assert await redis.keys("*") == []


async def test_an_empty_record_is_filled_once(redis: Redis, patient: None) -> None:
    store = RedisTenantStore(redis)
    assert (await store.mark(), await store.epoch()) == (None, None)
    await seed(store, [(a_key(1), a_tenant("acme"))], "first")
    epoch = await store.epoch()
    other = first_contents("second", 0.0, [], [(a_key(2, tenant_id="b"), a_tenant("b"))])
    assert not await store.restore(other, "a test")
    assert (await store.mark(), await store.epoch()) == ("first", epoch)
    assert epoch is not None
    assert await store.list_tenants() == [a_tenant("acme")]
    assert await store.list_keys() == [a_key(1)]


async def test_gateways_that_change_at_once_lose_no_change(redis: Redis, store: RedisTenantStore) -> None:
    gateways = [RedisTenantStore(redis) for _ in range(5)]

    async def change(number: int) -> list[int]:
        renamed = a_tenant(name=f"Acme {number}")
        return [(await gateways[number].put_tenant(renamed, None, BY)).version for _ in range(10)]

    versions = await asyncio.gather(*map(change, range(5)))
    assert sorted(version for of_one in versions for version in of_one) == list(range(2, 52))
    entries = await store.list_audit(limit=50)
    assert [entry.changes["version"] for entry in entries] == [(n - 1, n) for n in range(51, 1, -1)]


async def test_who_waits_too_long_for_its_turn_to_change_is_told(
    store: RedisTenantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.store_redis.CALL_TIMEOUT_S", 0.01)
    async with store._turn:
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.create_tenant(a_tenant("b"), BY)


async def test_the_change_count_of_a_new_life_is_above_that_of_the_old(redis: Redis, patient: None) -> None:
    store = RedisTenantStore(redis)
    await seed(store)
    for number in range(5):
        await store.create_tenant(a_tenant(f"t{number}"), BY)
    old = await store.change_count()
    await redis.flushall()
    await seed(store)
    assert await store.change_count() > old


async def test_a_count_that_was_read_in_an_earlier_life_writes_nothing(
    redis: Redis, store: RedisTenantStore
) -> None:
    count = await store.change_count()
    await redis.flushall()
    await seed(store)
    entry = AuditEntry(entry_id="", at=0.0, actor=BY, action="tenant.create", target="b", changes={})
    assert not await store._commit(count, additions([a_tenant("b")]), entry)
    assert await store.list_tenants() == []


async def test_one_deadline_covers_a_whole_call(mute_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.store_redis.CALL_TIMEOUT_S", 0.01)
    async with connect(mute_url) as client:
        with pytest.raises(StoreUnavailable, match="Redis did not answer in time") as caught:
            await RedisTenantStore(client).find_key("0" * 64)
    assert caught.value.trouble == "timeout"


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
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        await RedisTenantStore(client).get_tenant("acme")
    assert caught.value.trouble == "unreachable"
    await client.aclose()


async def test_the_record_outlives_a_restart_and_so_does_the_client(tmp_path: Path) -> None:
    server = RedisServer.start(tmp_path, tmp_path)
    client = connect(server.url)
    store = RedisTenantStore(client)
    await seed(store, [(a_key(), a_tenant())])
    count = await store.change_count()
    server.stop()
    with pytest.raises(StoreUnavailable):
        await store.get_tenant("acme")
    server = RedisServer.start(tmp_path, tmp_path)
    assert await store.find_key(a_key().key_hash) == an_account()
    assert await store.change_count() == count
    await client.aclose()
    server.stop()


async def test_more_callers_than_connections_wait_their_turn(store: RedisTenantStore) -> None:
    found = await asyncio.gather(*(store.find_key(a_key().key_hash) for _ in range(100)))
    assert found == [an_account()] * 100
