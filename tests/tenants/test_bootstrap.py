"""First keys: made once, found again, and never brought back against an operator's will."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from tenants.api_key import hash_key, is_well_formed
from tenants.audit import LAUNCHER
from tenants.bootstrap import BootstrapError, KeyFiles, ensure_demo
from tenants.snapshot_file import FILE_NAME, write_snapshot
from tenants.store_memory import MemoryTenantStore
from tenants.tier import BUILT_IN
from tests.builders_tenants import BY, SECRET, a_key, a_tenant, a_tier

replace = msgspec.structs.replace

NOW = 1_000.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def keys_in(home: Path) -> tuple[str, str]:
    return (home / "demo.key").read_text().strip(), (home / "admin.key").read_text().strip()


async def test_the_first_start_makes_both_tenants_keys_and_files(home: Path) -> None:
    store = MemoryTenantStore()
    assert await ensure_demo(store, SECRET, home, NOW) == KeyFiles(home / "demo.key", home / "admin.key")
    demo, admin = keys_in(home)
    assert is_well_formed(demo)
    assert is_well_formed(admin)
    for name, key, scope in (("demo", demo, "inference"), ("admin", admin, "admin")):
        record, tenant, _ = await store.find_key(hash_key(SECRET, key))
        assert (tenant.tenant_id, tenant.tier, tenant.created_at) == (name, "free", NOW)
        assert (record.scopes, record.hint, record.expires_at) == ((scope,), key[-4:], None)


async def test_the_files_are_for_their_owner_only_and_nothing_else_is_left(home: Path) -> None:
    old = os.umask(0)
    try:
        await ensure_demo(MemoryTenantStore(), SECRET, home, NOW)
    finally:
        os.umask(old)
    assert sorted(os.listdir(home)) == ["admin.key", "demo.key"]
    assert [(home / name).stat().st_mode & 0o777 for name in ("admin.key", "demo.key")] == [0o600, 0o600]


async def test_a_later_start_changes_nothing(home: Path) -> None:
    store = MemoryTenantStore()
    first = await ensure_demo(store, SECRET, home, NOW)
    keys, tenants = keys_in(home), await store.list_tenants()
    assert await ensure_demo(store, SECRET, home, NOW + 9) == first
    assert (keys_in(home), await store.list_tenants()) == (keys, tenants)
    assert len(await store.list_keys("demo")) == 1


async def test_the_first_start_makes_the_built_in_tiers_and_says_so(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    assert await store.list_tiers() == sorted(BUILT_IN, key=lambda tier: tier.name)
    (entry,) = await store.list_audit()
    assert (entry.actor, entry.action) == (LAUNCHER, "record.seed")
    assert entry.changes["keys"] == (None, 2)


async def test_a_tier_that_was_changed_or_deleted_stays_so(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    await store.put_tier(a_tier("free", weight=7), None, BY)
    await store.delete_tier("paid", None, BY)
    await ensure_demo(store, SECRET, home, NOW + 9)
    assert [(tier.name, tier.terms.weight) for tier in await store.list_tiers()] == [
        ("free", 7),
        ("unlimited", 1),
    ]


async def test_a_lost_record_comes_back_from_its_copy(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    await store.create_tier(a_tier("gold"), BY)
    await store.create_tenant(a_tenant("acme", tier="gold"), BY)
    await store.create_key(a_key(1), BY)
    await store.delete_key((await store.list_keys("demo"))[0].key_id, None, BY)
    copy = await store.snapshot(NOW + 1)
    write_snapshot(home / FILE_NAME, copy)
    empty, rebuilt = MemoryTenantStore(), []

    async def rebuild() -> None:
        rebuilt.append(await empty.epoch())

    assert await ensure_demo(empty, SECRET, home, NOW + 9, rebuild) == KeyFiles(None, home / "admin.key")
    assert replace(await empty.snapshot(NOW + 1), change_count=copy.change_count) == copy
    assert rebuilt == [None]  # before the record is whole
    assert (await empty.list_audit())[0].changes["taken_at"] == (None, NOW + 1)


async def test_a_whole_record_is_not_touched_by_a_copy_however_bad(home: Path) -> None:
    store = MemoryTenantStore()
    first = await ensure_demo(store, SECRET, home, NOW)
    (home / FILE_NAME).write_bytes(b"junk")
    assert await ensure_demo(store, SECRET, home, NOW + 9) == first


async def test_a_damaged_copy_of_a_lost_record_is_named_and_nothing_is_written(home: Path) -> None:
    await ensure_demo(MemoryTenantStore(), SECRET, home, NOW)
    (home / FILE_NAME).write_bytes(b'{"mark": "secret stuff"')
    empty = MemoryTenantStore()
    with pytest.raises(BootstrapError, match=r"snapshot\.json is damaged.*or remove it") as caught:
        await ensure_demo(empty, SECRET, home, NOW + 9)
    assert "stuff" not in str(caught.value)
    assert (await empty.mark(), await empty.list_tenants()) == (None, [])


async def test_two_that_start_at_once_make_one_record(home: Path, tmp_path: Path) -> None:
    store = MemoryTenantStore()
    starts = (ensure_demo(store, SECRET, path, NOW) for path in (home, tmp_path / "elsewhere"))
    await asyncio.gather(*starts)
    assert [tenant.tenant_id for tenant in await store.list_tenants()] == ["admin", "demo"]
    for key in (*keys_in(home), *keys_in(tmp_path / "elsewhere")):
        assert await store.find_key(hash_key(SECRET, key)) is not None


async def test_a_lost_record_gets_the_same_keys_from_the_files(home: Path) -> None:
    await ensure_demo(MemoryTenantStore(), SECRET, home, NOW)
    keys, empty = keys_in(home), MemoryTenantStore()
    await ensure_demo(empty, SECRET, home, NOW + 9)
    assert keys_in(home) == keys
    assert all([await empty.find_key(hash_key(SECRET, key)) for key in keys])


async def test_a_deleted_key_stays_deleted(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    await store.delete_key((await store.list_keys("demo"))[0].key_id, None, BY)
    assert await ensure_demo(store, SECRET, home, NOW + 9) == KeyFiles(None, home / "admin.key")
    assert await store.list_keys("demo") == []


async def test_a_deleted_tenant_stays_deleted_even_without_its_file(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    await store.delete_tenant("demo", None, BY)
    (home / "demo.key").unlink()
    assert await ensure_demo(store, SECRET, home, NOW + 9) == KeyFiles(None, home / "admin.key")
    assert await store.get_tenant("demo") is None
    assert not (home / "demo.key").exists()


async def test_a_lost_file_is_made_again_with_a_new_key(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    old = keys_in(home)[1]
    (home / "admin.key").unlink()
    assert await ensure_demo(store, SECRET, home, NOW + 9) == KeyFiles(home / "demo.key", home / "admin.key")
    new = keys_in(home)[1]
    assert new != old
    assert await store.find_key(hash_key(SECRET, new)) is not None


async def test_another_secret_is_refused_and_nothing_is_written(home: Path, tmp_path: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(BootstrapError, match="made under another secret"):
        await ensure_demo(store, b"another", elsewhere, NOW)
    assert not elsewhere.exists()


@pytest.mark.parametrize("content", [b"", b"sk-123", b"\xff\xfe"])
async def test_a_file_that_holds_no_key_is_named(home: Path, content: bytes) -> None:
    (home / "admin.key").write_bytes(content)
    with pytest.raises(BootstrapError, match=r"admin\.key"):
        await ensure_demo(MemoryTenantStore(), SECRET, home, NOW)


async def test_what_a_crash_left_half_written_is_in_nobodys_way(home: Path) -> None:
    (home / "demo.new").write_text("hr-half")
    await ensure_demo(MemoryTenantStore(), SECRET, home, NOW)
    assert is_well_formed(keys_in(home)[0])
    assert not (home / "demo.new").exists()
