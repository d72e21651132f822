"""The record of tenants and keys: one specification, run on both stores."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tenants.store import Account, Conflict, NotFound, TenantStore
from tenants.store_memory import MemoryTenantStore
from tenants.store_redis import RedisTenantStore
from tests.builders_tenants import a_key, a_tenant


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> TenantStore:
    if request.param == "memory":
        return MemoryTenantStore()
    return RedisTenantStore(request.getfixturevalue("redis"))


async def test_a_tenant_is_found_as_it_was_made(store: TenantStore) -> None:
    tenant = a_tenant("acme", name="Ünïcode & Söhne", disabled=True)
    await store.create_tenant(tenant)
    assert await store.get_tenant("acme") == tenant
    assert await store.get_tenant("nobody") is None


async def test_a_taken_id_is_a_conflict_and_changes_nothing(store: TenantStore) -> None:
    await store.create_tenant(a_tenant("acme", tier="paid"))
    with pytest.raises(Conflict, match="acme"):
        await store.create_tenant(a_tenant("acme", tier="free"))
    assert await store.get_tenant("acme") == a_tenant("acme", tier="paid")


async def test_tenants_are_listed_by_id(store: TenantStore) -> None:
    assert await store.list_tenants() == []
    for tenant_id in ("b", "a-2", "a"):
        await store.create_tenant(a_tenant(tenant_id))
    assert [tenant.tenant_id for tenant in await store.list_tenants()] == ["a", "a-2", "b"]


async def test_a_key_is_found_by_its_hash_with_its_tenant(store: TenantStore) -> None:
    tenant, key = a_tenant(), a_key(scopes=("inference", "admin"), expires_at=2.5)
    await store.create_tenant(tenant)
    await store.create_key(key)
    assert await store.find_key(key.key_hash) == Account(key, tenant)
    assert await store.find_key("0" * 64) is None


async def test_a_key_without_its_tenant_is_refused(store: TenantStore) -> None:
    with pytest.raises(NotFound, match="acme"):
        await store.create_key(a_key())
    assert await store.find_key(a_key().key_hash) is None


@pytest.mark.parametrize("other", [a_key(2, key_id=a_key(1).key_id), a_key(2, key_hash=a_key(1).key_hash)])
async def test_a_taken_key_id_or_hash_is_a_conflict(store: TenantStore, other: object) -> None:
    await store.create_tenant(a_tenant())
    await store.create_key(a_key(1))
    with pytest.raises(Conflict, match=other.key_id):
        await store.create_key(other)
    assert await store.list_keys("acme") == [a_key(1)]


async def test_keys_are_listed_by_creation_then_id(store: TenantStore) -> None:
    await store.create_tenant(a_tenant())
    late, early, also_early = a_key(1, created_at=9.0), a_key(3, created_at=2.0), a_key(2, created_at=2.0)
    for key in (late, early, also_early):
        await store.create_key(key)
    assert await store.list_keys("acme") == [also_early, early, late]


async def test_keys_of_an_unknown_tenant_are_not_found(store: TenantStore) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await store.list_keys("nobody")


async def test_a_deleted_key_is_gone_and_the_others_stay(store: TenantStore) -> None:
    await store.create_tenant(a_tenant())
    await store.create_key(a_key(1))
    await store.create_key(a_key(2))
    await store.delete_key("acme", a_key(1).key_id)
    assert await store.find_key(a_key(1).key_hash) is None
    assert await store.list_keys("acme") == [a_key(2)]
    with pytest.raises(NotFound, match=a_key(1).key_id):
        await store.delete_key("acme", a_key(1).key_id)


async def test_a_key_is_deleted_only_through_its_own_tenant(store: TenantStore) -> None:
    await store.create_tenant(a_tenant("acme"))
    await store.create_tenant(a_tenant("other"))
    await store.create_key(a_key(1, tenant_id="acme"))
    with pytest.raises(NotFound):
        await store.delete_key("other", a_key(1).key_id)
    assert await store.list_keys("acme") == [a_key(1)]


async def test_a_deleted_tenant_takes_its_keys_along_and_no_others(store: TenantStore) -> None:
    await store.create_tenant(a_tenant("acme"))
    await store.create_tenant(a_tenant("other"))
    await store.create_key(a_key(1, tenant_id="acme"))
    await store.create_key(a_key(2, tenant_id="acme"))
    await store.create_key(a_key(3, tenant_id="other"))
    await store.delete_tenant("acme")
    assert [await store.find_key(a_key(n).key_hash) is None for n in (1, 2, 3)] == [True, True, False]
    with pytest.raises(NotFound, match="acme"):
        await store.delete_tenant("acme")


async def test_a_tenant_made_again_has_none_of_the_old_keys(store: TenantStore) -> None:
    await store.create_tenant(a_tenant())
    await store.create_key(a_key())
    await store.delete_tenant("acme")
    await store.create_tenant(a_tenant())
    assert await store.list_keys("acme") == []
    await store.create_key(a_key())


async def test_an_empty_record_is_seeded_once(store: TenantStore) -> None:
    assert await store.seed("first", [Account(a_key(1), a_tenant("acme"))]) is None
    assert await store.seed("second", [Account(a_key(2, tenant_id="b"), a_tenant("b"))]) == "first"
    assert [tenant.tenant_id for tenant in await store.list_tenants()] == ["acme"]
    assert await store.list_keys("acme") == [a_key(1)]


async def test_seeding_leaves_a_tenant_that_is_there_as_it_is(store: TenantStore) -> None:
    await store.create_tenant(a_tenant("acme", tier="paid"))
    await store.seed("mark", [Account(a_key(1), a_tenant("acme", tier="free"))])
    assert await store.find_key(a_key(1).key_hash) == Account(a_key(1), a_tenant("acme", tier="paid"))


IDS = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(1, 5)
OPERATIONS = st.one_of(
    st.tuples(st.just("create_tenant"), IDS.map(a_tenant)),
    st.tuples(st.just("delete_tenant"), IDS),
    st.tuples(st.just("create_key"), st.builds(lambda n, t: a_key(n, tenant_id=t), NUMBERS, IDS)),
    st.tuples(st.just("delete_key"), IDS, NUMBERS.map(lambda n: a_key(n).key_id)),
    st.tuples(st.just("list_keys"), IDS),
    st.tuples(st.just("find_key"), NUMBERS.map(lambda n: a_key(n).key_hash)),
    st.tuples(st.just("list_tenants")),
)


async def outcome(call: Callable) -> object:
    try:
        return await call
    except (Conflict, NotFound) as error:
        return type(error), str(error)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATIONS, max_size=15))
async def test_both_stores_answer_alike_whatever_is_done(redis: Redis, operations: list[tuple]) -> None:
    await redis.flushall()
    memory, record = MemoryTenantStore(), RedisTenantStore(redis)
    for name, *arguments in operations:
        expected = await outcome(getattr(memory, name)(*arguments))
        assert await outcome(getattr(record, name)(*arguments)) == expected
