"""First keys: made once, found again, and never brought back against an operator's will."""

import os
from pathlib import Path

import pytest

from tenants.api_key import hash_key, is_well_formed
from tenants.bootstrap import BootstrapError, KeyFiles, ensure_demo
from tenants.store_memory import MemoryTenantStore
from tests.builders_tenants import SECRET

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
        record, tenant = await store.find_key(hash_key(SECRET, key))
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


async def test_a_lost_record_gets_the_same_keys_from_the_files(home: Path) -> None:
    await ensure_demo(MemoryTenantStore(), SECRET, home, NOW)
    keys, empty = keys_in(home), MemoryTenantStore()
    await ensure_demo(empty, SECRET, home, NOW + 9)
    assert keys_in(home) == keys
    assert all([await empty.find_key(hash_key(SECRET, key)) for key in keys])


async def test_a_deleted_key_stays_deleted(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    await store.delete_key("demo", (await store.list_keys("demo"))[0].key_id)
    assert await ensure_demo(store, SECRET, home, NOW + 9) == KeyFiles(None, home / "admin.key")
    assert await store.list_keys("demo") == []


async def test_a_deleted_tenant_stays_deleted_even_without_its_file(home: Path) -> None:
    store = MemoryTenantStore()
    await ensure_demo(store, SECRET, home, NOW)
    await store.delete_tenant("demo")
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
