"""The record of tiers, tenants and keys: one specification, run on both stores."""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tenants.audit import LAUNCHER, Actor, AuditEntry
from tenants.store import Conflict, NotFound, StaleVersion, TenantStore
from tenants.store_memory import MemoryTenantStore
from tenants.store_redis import RedisTenantStore
from tenants.terms import Limits
from tenants.tier import FREE, PAID
from tests.builders_tenants import BY, a_key, a_tenant, a_tier, an_account, seed

replace = msgspec.structs.replace


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> TenantStore:
    return MemoryTenantStore() if request.param == "memory" else request.getfixturevalue("record")


async def test_the_built_in_tiers_are_there_by_name(store: TenantStore) -> None:
    assert [tier.name for tier in await store.list_tiers()] == ["free", "paid", "unlimited"]
    assert await store.get_tier("paid") == PAID
    assert await store.get_tier("gold") is None


async def test_a_tier_is_found_as_it_was_made(store: TenantStore) -> None:
    tier = a_tier("gold", weight=8, models=("tiny",), budget_day=0, max_queue_len=None)
    await store.create_tier(tier, BY)
    assert await store.get_tier("gold") == tier
    with pytest.raises(Conflict, match="tier gold already exists"):
        await store.create_tier(a_tier("gold"), BY)
    assert await store.get_tier("gold") == tier


async def test_a_tenant_is_found_as_it_was_made(store: TenantStore) -> None:
    tenant = a_tenant(
        "acme", name="Ünïcode & Söhne", disabled=True, overrides={"budget_day": None, "weight": 2}
    )
    await store.create_tenant(tenant, BY)
    assert await store.get_tenant("acme") == tenant
    assert await store.get_tenant("nobody") is None


async def test_a_taken_id_is_a_conflict_and_changes_nothing(store: TenantStore) -> None:
    await store.create_tenant(a_tenant("acme", tier="paid"), BY)
    with pytest.raises(Conflict, match="tenant acme already exists"):
        await store.create_tenant(a_tenant("acme", tier="free"), BY)
    assert await store.get_tenant("acme") == a_tenant("acme", tier="paid")


async def test_a_tenant_needs_a_tier_that_is_there(store: TenantStore) -> None:
    with pytest.raises(NotFound, match="there is no tier gold"):
        await store.create_tenant(a_tenant("acme", tier="gold"), BY)
    await store.create_tenant(a_tenant("acme"), BY)
    with pytest.raises(NotFound, match="there is no tier gold"):
        await store.put_tenant(a_tenant("acme", tier="gold"), None, BY)
    assert await store.list_tenants() == [a_tenant("acme")]


@pytest.mark.parametrize("overrides", [{"weight": 0}, {"budget_day": "much"}, {"colour": "red"}])
async def test_overrides_that_are_no_terms_are_never_written(store: TenantStore, overrides: dict) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(overrides))):
        await store.create_tenant(a_tenant("acme", overrides=overrides), BY)
    await store.create_tenant(a_tenant("acme"), BY)
    with pytest.raises(msgspec.ValidationError, match=next(iter(overrides))):
        await store.put_tenant(a_tenant("acme", overrides=overrides), None, BY)
    assert await store.get_tenant("acme") == a_tenant("acme")


async def test_a_key_is_found_by_its_hash_with_its_tenant_and_terms(store: TenantStore) -> None:
    key = a_key(
        scopes=("inference", "admin:read"), expires_at=2.5, limits=Limits(budget_day=5), addresses=("::1",)
    )
    tenant = a_tenant(overrides={"weight": 9, "requests_per_min": None})
    await store.create_tenant(tenant, BY)
    await store.create_key(key, BY)
    found = await store.find_key(key.key_hash)
    assert found == (key, tenant, replace(PAID.terms, weight=9, requests_per_min=None))
    assert await store.get_key(key.key_id) == key
    assert await store.find_key("0" * 64) is None
    assert await store.get_key(a_key(2).key_id) is None


async def test_terms_follow_the_tier_and_the_overrides_at_once(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(overrides={"weight": 9}), BY)
    await store.create_key(a_key(), BY)
    await store.put_tier(a_tier("paid", max_concurrency=3, weight=1), None, BY)
    terms = (await store.find_key(a_key().key_hash)).terms
    assert (terms.max_concurrency, terms.weight) == (3, 9)
    await store.put_tenant(a_tenant(tier="free"), None, BY)
    assert (await store.find_key(a_key().key_hash)).terms == FREE.terms


async def test_a_key_without_its_tenant_is_refused(store: TenantStore) -> None:
    with pytest.raises(NotFound, match="there is no tenant acme"):
        await store.create_key(a_key(), BY)
    assert await store.find_key(a_key().key_hash) is None


@pytest.mark.parametrize("tenant_id", ["acme", "other"])
@pytest.mark.parametrize("same", ["key_id", "key_hash"])
async def test_a_taken_key_id_or_hash_is_a_conflict(store: TenantStore, same: str, tenant_id: str) -> None:
    await store.create_tenant(a_tenant("acme"), BY)
    await store.create_tenant(a_tenant("other"), BY)
    await store.create_key(a_key(1), BY)
    other = a_key(2, **{same: getattr(a_key(1), same)}, tenant_id=tenant_id)
    with pytest.raises(Conflict, match=other.key_id):
        await store.create_key(other, BY)
    assert await store.list_keys() == [a_key(1)]


async def test_keys_of_an_unknown_tenant_are_not_found(store: TenantStore) -> None:
    with pytest.raises(NotFound, match="there is no tenant nobody"):
        await store.list_keys("nobody")


async def test_lists_come_in_pages_by_id(store: TenantStore) -> None:
    for tenant_id in ("b", "a-2", "a", "a_1", "a0"):
        await store.create_tenant(a_tenant(tenant_id), BY)
    for number, tenant_id in ((1, "a"), (4, "b"), (3, "a"), (2, "a")):
        await store.create_key(a_key(number, tenant_id=tenant_id), BY)
    in_order = ["a", "a-2", "a0", "a_1", "b"]

    async def ids(after: str = "", limit: int | None = None) -> list[str]:
        return [tenant.tenant_id for tenant in await store.list_tenants(after, limit)]

    assert await ids() == in_order
    assert [await ids(after, 2) for after in ("", "a-2", "a_1", "b")] == [
        ["a", "a-2"],
        ["a0", "a_1"],
        ["b"],
        [],
    ]
    assert await ids("a1") == ["a_1", "b"]  # nobody of that name
    assert await ids("ü", 3) == []
    assert [tier.name for tier in await store.list_tiers("free", 1)] == ["paid"]
    assert await store.list_keys() == [
        a_key(n, tenant_id=tenant_id) for n, tenant_id in enumerate("aaab", start=1)
    ]
    assert await store.list_keys("a", a_key(1).key_id, 1) == [a_key(2, tenant_id="a")]
    assert await store.list_keys(None, a_key(3).key_id) == [a_key(4, tenant_id="b")]


async def test_a_change_gives_the_next_version(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    await store.create_key(a_key(), BY)
    tier = await store.put_tier(replace(PAID, terms=FREE.terms), 1, BY)
    tenant = await store.put_tenant(a_tenant(name="New", version=77), 1, BY)
    key = await store.put_key(a_key(name="ci"), None, BY)
    assert (tier, tenant, key) == (
        replace(PAID, terms=FREE.terms, version=2),
        a_tenant(name="New", version=2),
        a_key(name="ci", version=2),
    )
    assert await store.find_key(key.key_hash) == (key, tenant, FREE.terms)


async def test_a_change_of_an_old_version_is_refused_and_changes_nothing(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    await store.create_key(a_key(), BY)
    await store.put_tier(PAID, 1, BY)
    await store.put_tenant(a_tenant(name="Theirs"), 1, BY)
    await store.put_key(a_key(name="theirs"), 1, BY)
    count = await store.change_count()
    for refused in (
        store.put_tier(PAID, 1, BY),
        store.put_tenant(a_tenant(name="Mine"), 1, BY),
        store.put_key(a_key(name="mine"), 3, BY),
        store.delete_tenant("acme", 1, BY),
        store.delete_key(a_key().key_id, 1, BY),
    ):
        with pytest.raises(StaleVersion, match=r"has version 2 now, not [13]"):
            await refused
    assert await store.get_tenant("acme") == a_tenant(name="Theirs", version=2)
    assert await store.get_key(a_key().key_id) == a_key(name="theirs", version=2)
    assert await store.change_count() == count


async def test_what_is_not_there_cannot_be_changed(store: TenantStore) -> None:
    count, log = await store.change_count(), await store.list_audit()
    for missing in (
        store.put_tier(a_tier("gold"), None, BY),
        store.put_tenant(a_tenant(), 1, BY),
        store.put_key(a_key(), None, BY),
        store.delete_tier("gold", None, BY),
        store.delete_tenant("acme", 1, BY),
        store.delete_key(a_key().key_id, None, BY),
    ):
        with pytest.raises(NotFound, match="there is no"):
            await missing
    assert (await store.change_count(), await store.list_audit()) == (count, log)


async def test_of_many_changes_of_one_version_one_is_made(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    changes = [store.put_tenant(a_tenant(name=f"Acme {n}"), 1, BY) for n in range(20)]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    made = [outcome for outcome in outcomes if not isinstance(outcome, StaleVersion)]
    assert made == [await store.get_tenant("acme")]
    assert made[0].version == 2


async def test_changes_of_whatever_version_are_all_made_one_by_one(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    changed = await asyncio.gather(
        *(store.put_tenant(a_tenant(name=f"Acme {n}"), None, BY) for n in range(20)),
        *(store.create_key(a_key(n), BY) for n in range(1, 21)),
    )
    assert sorted(tenant.version for tenant in changed[:20]) == list(range(2, 22))
    assert len(await store.list_keys("acme")) == 20


async def test_a_key_keeps_its_hash_and_its_tenant(store: TenantStore) -> None:
    await store.create_tenant(a_tenant("acme"), BY)
    await store.create_tenant(a_tenant("other"), BY)
    await store.create_key(a_key(), BY)
    changed = await store.put_key(a_key(key_hash="f" * 64, tenant_id="other", expires_at=9.0), None, BY)
    assert changed == a_key(expires_at=9.0, version=2)
    assert (await store.find_key(a_key().key_hash)).key == changed
    assert await store.find_key("f" * 64) is None
    assert await store.list_keys("other") == []


async def test_after_a_rotation_both_keys_live(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    await store.create_key(a_key(1, name="ci"), BY)
    await store.create_key(a_key(2, name="ci"), BY)
    await store.put_key(a_key(1, name="ci", expires_at=100.0), 1, BY)
    old, new = [(await store.find_key(a_key(n).key_hash)).key for n in (1, 2)]
    assert (old.expires_at, new.expires_at) == (100.0, None)


async def test_a_deleted_key_is_gone_and_the_others_stay(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    await store.create_key(a_key(1), BY)
    await store.create_key(a_key(2), BY)
    await store.delete_key(a_key(1).key_id, 1, BY)
    assert await store.find_key(a_key(1).key_hash) is None
    assert await store.list_keys() == await store.list_keys("acme") == [a_key(2)]
    await store.create_key(a_key(1), BY)  # its id and its hash are free again


async def test_a_deleted_tenant_takes_its_keys_along_and_no_others(store: TenantStore) -> None:
    await store.create_tenant(a_tenant("acme"), BY)
    await store.create_tenant(a_tenant("other"), BY)
    for number, tenant_id in ((1, "acme"), (2, "acme"), (3, "other")):
        await store.create_key(a_key(number, tenant_id=tenant_id), BY)
    await store.delete_tenant("acme", None, BY)
    assert await store.list_keys() == [a_key(3, tenant_id="other")]
    assert [await store.find_key(a_key(n).key_hash) is None for n in (1, 2, 3)] == [True, True, False]
    await store.create_tenant(a_tenant("acme"), BY)
    assert await store.list_keys("acme") == []
    await store.create_key(a_key(1), BY)


async def test_a_tier_in_use_is_not_deleted(store: TenantStore) -> None:
    await store.create_tier(a_tier("gold"), BY)
    await store.create_tenant(a_tenant("acme", tier="gold"), BY)
    with pytest.raises(Conflict, match="tier gold is in use, by tenant acme at least"):
        await store.delete_tier("gold", 1, BY)
    await store.put_tenant(a_tenant("acme", tier="free"), None, BY)
    await store.delete_tier("gold", 1, BY)
    assert await store.get_tier("gold") is None
    with pytest.raises(Conflict, match="tier free is in use"):
        await store.delete_tier("free", None, BY)


async def test_the_change_count_grows_with_changes_and_with_nothing_else(store: TenantStore) -> None:
    counts = [await store.change_count()]
    for change in (
        store.create_tier(a_tier(), BY),
        store.create_tenant(a_tenant(), BY),
        store.create_key(a_key(), BY),
        store.put_tier(a_tier(weight=2), None, BY),
        store.put_tenant(a_tenant(name="New"), None, BY),
        store.put_key(a_key(name="new"), None, BY),
        store.delete_key(a_key().key_id, None, BY),
        store.delete_tenant("acme", None, BY),
        store.delete_tier("gold", None, BY),
    ):
        await change
        counts.append(await store.change_count())
    assert all(earlier < later for earlier, later in pairwise(counts))
    await store.note(an_entry())
    await store.list_tenants()
    with pytest.raises(Conflict):
        await store.create_tier(FREE, BY)
    assert await store.change_count() == counts[-1]


def an_entry(**fields: Any) -> AuditEntry:
    plain = {
        "entry_id": "",
        "at": 0.0,
        "actor": BY,
        "action": "budget.top_up",
        "target": "acme",
        "changes": {},
    }
    return AuditEntry(**plain | fields)


async def told(store: TenantStore) -> list[tuple]:
    """The entries behind those of the start, the oldest first."""
    entries = [entry for entry in await store.list_audit() if entry.actor != LAUNCHER]
    return [(entry.actor.key_id, entry.action, entry.target, entry.changes) for entry in reversed(entries)]


async def test_each_change_is_told_with_who_made_it_and_what_differs(store: TenantStore) -> None:
    somebody = Actor("ops", "key_somebody")
    await store.create_tenant(a_tenant(overrides={"weight": 2}), BY)
    await store.put_tenant(a_tenant(disabled=True), 1, somebody)
    await store.put_tier(replace(FREE, terms=replace(FREE.terms, weight=3, models=("a", "b"))), 1, BY)
    assert await told(store) == [
        (
            BY.key_id,
            "tenant.create",
            "acme",
            {
                "tenant_id": (None, "acme"),
                "name": (None, "Acme"),
                "tier": (None, "paid"),
                "created_at": (None, 1.0),
                "disabled": (None, False),
                "num_freezes": (None, 0),
                "overrides": (None, {"weight": 2}),
                "version": (None, 1),
            },
        ),
        (
            "key_somebody",
            "tenant.update",
            "acme",
            {"disabled": (False, True), "overrides": ({"weight": 2}, {}), "version": (1, 2)},
        ),
        (
            BY.key_id,
            "tier.update",
            "free",
            {"terms.weight": (1, 3), "terms.models": (None, ["a", "b"]), "version": (1, 2)},
        ),
    ]


async def test_no_entry_holds_a_key_s_hash(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    for number in (1, 2):
        await store.create_key(a_key(number, key_hash=f"{number}" * 64, limits=Limits(budget_day=7)), BY)
    await store.put_key(a_key(1, limits=None), None, BY)
    await store.delete_tenant("acme", None, BY)
    entries = await told(store)
    assert [action for _, action, _, _ in entries][1:] == [
        "key.create",
        "key.create",
        "key.update",
        "tenant.delete",
    ]
    assert entries[1][3]["limits.budget_day"] == (None, 7)
    assert entries[3][3] == {
        "limits.budget_day": (7, None),
        "limits.burst_s": (60, None),
        "version": (1, 2),
    }
    assert entries[4][3]["keys"] == ([a_key(1).key_id, a_key(2).key_id], None)
    assert "1111" not in str(entries)
    assert "hash" not in str(entries)


async def test_the_log_comes_in_pages_the_latest_first(store: TenantStore) -> None:
    for number in range(5):
        await store.note(an_entry(target=f"t{number}", changes={"amount": (None, number)}))
    first = await store.list_audit(limit=2)
    second = await store.list_audit(before=first[-1].entry_id, limit=2)
    third = await store.list_audit(before=second[-1].entry_id, limit=1)
    assert [entry.target for entry in first + second + third] == ["t4", "t3", "t2", "t1", "t0"]
    assert first[0].changes == {"amount": (None, 4)}
    assert first[0].actor == BY


@pytest.mark.parametrize("before", ["x", "1", "1-", "-1", "1-1-1", "(1-1", "1-٣", f"{2**64}-0", "1-1\n"])
async def test_a_place_in_the_log_that_is_none_is_an_error(store: TenantStore, before: str) -> None:
    with pytest.raises(ValueError, match="no id of an audit entry"):
        await store.list_audit(before=before)


IDS = st.sampled_from(["a", "b", "c"])
TIERS = st.sampled_from(["free", "gold"])
NUMBERS = st.integers(1, 5)
VERSIONS = st.sampled_from([None, 1, 2, 3])
KEY_IDS = NUMBERS.map(lambda n: a_key(n).key_id)
SOME_TENANTS = st.builds(
    lambda tenant_id, tier, disabled: a_tenant(tenant_id, tier=tier, disabled=disabled),
    IDS,
    TIERS,
    st.booleans(),
)
SOME_KEYS = st.builds(
    lambda n, other, tenant_id: a_key(n, key_hash=f"{other:064x}", tenant_id=tenant_id), NUMBERS, NUMBERS, IDS
)
SOME_TIERS = st.builds(lambda name, weight: a_tier(name, weight=weight), TIERS, st.integers(1, 3))
WHO = st.just(BY)
PAGE = (st.sampled_from(["", "a", "b0", a_key(2).key_id]), st.sampled_from([None, 1, 2]))
OPERATIONS = st.one_of(
    st.tuples(st.just("create_tier"), SOME_TIERS, WHO),
    st.tuples(st.just("put_tier"), SOME_TIERS, VERSIONS, WHO),
    st.tuples(st.just("delete_tier"), TIERS, VERSIONS, WHO),
    st.tuples(st.just("create_tenant"), SOME_TENANTS, WHO),
    st.tuples(st.just("put_tenant"), SOME_TENANTS, VERSIONS, WHO),
    st.tuples(st.just("delete_tenant"), IDS, VERSIONS, WHO),
    st.tuples(st.just("create_key"), SOME_KEYS, WHO),
    st.tuples(st.just("put_key"), SOME_KEYS, VERSIONS, WHO),
    st.tuples(st.just("delete_key"), KEY_IDS, VERSIONS, WHO),
    st.tuples(st.just("get_key"), KEY_IDS),
    st.tuples(st.just("find_key"), NUMBERS.map(lambda n: f"{n:064x}")),
    st.tuples(st.just("list_tiers"), *PAGE),
    st.tuples(st.just("list_tenants"), *PAGE),
    st.tuples(st.just("list_keys"), st.none() | IDS, *PAGE),
)


async def outcome(call: Awaitable) -> object:
    try:
        return await call
    except (Conflict, NotFound, StaleVersion) as error:
        return type(error), str(error)


async def contents(store: TenantStore) -> list[object]:
    """All that it holds."""
    lists = [await store.list_tiers(), await store.list_tenants(), await store.list_keys()]
    of_tenants = [await store.list_keys(tenant.tenant_id) for tenant in lists[1]]
    found = [await store.find_key(f"{number:064x}") for number in range(1, 6)]
    return [*lists, of_tenants, found, await told(store)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATIONS, max_size=25))
async def test_both_stores_answer_alike_whatever_is_done(
    redis: Redis, patient: None, operations: list[tuple]
) -> None:
    await redis.flushall()
    memory, record = MemoryTenantStore(), RedisTenantStore(redis)
    await seed(record)
    for name, *arguments in operations:
        counts = [await store.change_count() for store in (memory, record)]
        expected = await outcome(getattr(memory, name)(*arguments))
        assert await outcome(getattr(record, name)(*arguments)) == expected
        grown = [
            await store.change_count() - count for store, count in zip((memory, record), counts, strict=True)
        ]
        assert grown[0] == grown[1]
    assert await contents(record) == await contents(memory)


@given(st.lists(OPERATIONS, max_size=40))
async def test_whatever_is_done_every_key_has_its_tenant_and_every_tenant_its_tier(
    operations: list[tuple],
) -> None:
    store = MemoryTenantStore()
    for name, *arguments in operations:
        await outcome(getattr(store, name)(*arguments))
    assert (await store.snapshot(0.0)).holds_together()


async def test_an_account_of_the_builders_is_what_a_store_finds(store: TenantStore) -> None:
    await store.create_tenant(a_tenant(), BY)
    await store.create_key(a_key(), BY)
    assert await store.find_key(a_key().key_hash) == an_account()
