"""The copy of the record in a file: when it is written, by whom, and that only a whole one is believed."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from tenants.snapshot import Snapshot, first_contents
from tenants.snapshot_file import FILE_NAME, SnapshotError, SnapshotKeeper, read_snapshot, write_snapshot
from tenants.store import StoreUnavailable
from tenants.store_redis import RedisTenantStore
from tenants.tier import BUILT_IN
from tests.builders_tenants import BY, FakeClock, a_key, a_tenant, a_tier

replace = msgspec.structs.replace


def a_snapshot(**fields: object) -> Snapshot:
    plain = first_contents("mark", 5.0, BUILT_IN, [(a_key(addresses=("10.0.0.0/8",)), a_tenant())])
    return replace(plain, change_count=7, **fields)


@pytest.fixture
async def keeper(record: RedisTenantStore, tmp_path: Path) -> SnapshotKeeper:
    keeper = SnapshotKeeper(record, tmp_path / "state", FakeClock(77.0))
    yield keeper
    keeper.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / FILE_NAME


def test_what_was_written_is_read(file: Path) -> None:
    assert read_snapshot(file, "mark") is None
    write_snapshot(file, a_snapshot())
    assert read_snapshot(file, "mark") == a_snapshot()
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == [FILE_NAME]


def test_it_is_on_disk_before_it_takes_the_old_one_s_place(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    sync, rename = os.fsync, Path.replace

    def watched_sync(descriptor: int) -> None:
        steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def watched_rename(path: Path, target: Path) -> Path:
        steps.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_rename)
    write_snapshot(file, a_snapshot())
    assert steps == ["snapshot.new", "renamed", "state"]


def test_what_cannot_be_written_leaves_the_old_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_snapshot(file, a_snapshot())

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_snapshot(file, a_snapshot(taken_at=6.0))
    monkeypatch.undo()
    assert read_snapshot(file, "mark") == a_snapshot()
    write_snapshot(file, a_snapshot(taken_at=6.0))
    assert read_snapshot(file, "mark") == a_snapshot(taken_at=6.0)


def content(file: Path) -> bytes:
    return file.read_bytes()


WHOLE = msgspec.json.encode(a_snapshot())
DAMAGED = {
    "empty": b"",
    "half": WHOLE[: len(WHOLE) // 2],
    "bytes": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "another schema": b"{}",
    "a bad network": WHOLE.replace(b"10.0.0.0/8", b"anywhere!!"),
    "a key without its tenant": msgspec.json.encode(a_snapshot(tenants=())),
    "a tenant without its tier": msgspec.json.encode(a_snapshot(tiers=())),
    "a key twice": msgspec.json.encode(a_snapshot(keys=(a_key(1), a_key(1)))),
    "a hash twice": msgspec.json.encode(a_snapshot(keys=(a_key(1), a_key(2, key_hash=a_key(1).key_hash)))),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_one_is_named_without_its_content(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(file, "mark")
    assert str(caught.value).startswith(f"{file} is damaged")
    assert len(str(caught.value)) < len(str(file)) + 80
    assert caught.value.__cause__ is None


def test_one_of_another_secret_is_not_believed(file: Path) -> None:
    write_snapshot(file, a_snapshot())
    with pytest.raises(SnapshotError, match="under another secret"):
        read_snapshot(file, "another")


def test_one_that_cannot_be_read_is_an_error_and_not_none(file: Path) -> None:
    file.mkdir(parents=True)
    with pytest.raises(SnapshotError, match=r"cannot be read \(IsADirectoryError\)"):
        read_snapshot(file, "mark")


async def test_each_change_is_in_the_file_after_the_next_look(
    keeper: SnapshotKeeper, record: RedisTenantStore, file: Path
) -> None:
    assert await keeper.keep_up()
    for change in (
        record.create_tier(a_tier(), BY),
        record.create_tenant(a_tenant(overrides={"budget_day": None}), BY),
        record.create_key(a_key(), BY),
        record.put_key(a_key(name="x"), None, BY),
        record.delete_key(a_key().key_id, None, BY),
    ):
        await change
        assert await keeper.keep_up()
        assert read_snapshot(file, "mark") == await record.snapshot(77.0)
    assert not await keeper.keep_up()


async def test_without_a_change_nothing_is_written(keeper: SnapshotKeeper, file: Path) -> None:
    await keeper.keep_up()
    os.truncate(file, 0)
    assert not await keeper.keep_up()
    assert content(file) == b""
    os.remove(file)
    assert await keeper.keep_up()  # somebody removed it


async def test_an_emptied_or_absent_redis_never_takes_the_copy_s_place(
    keeper: SnapshotKeeper, record: RedisTenantStore, redis: Redis, file: Path
) -> None:
    await record.create_tenant(a_tenant(), BY)
    await keeper.keep_up()
    before = content(file)
    await redis.flushall()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="came back empty"):
            await keeper.keep_up()
    assert content(file) == before


async def test_a_foreign_row_never_comes_into_the_copy_and_is_told_once(
    keeper: SnapshotKeeper,
    record: RedisTenantStore,
    redis: Redis,
    file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await keeper.keep_up()
    before = content(file)
    await redis.hset("headrace:{directory}:tenants", "acme", b"junk")
    await record.put_tier(a_tier("free"), None, BY)
    assert [await keeper.keep_up() for _ in range(3)] == [False] * 3
    assert (content(file), keeper.is_behind) == (before, True)
    assert caplog.text.count("cannot be written: a value in headrace:{directory}:tenants is no Tenant") == 1
    await redis.hdel("headrace:{directory}:tenants", "acme")
    assert await keeper.keep_up()
    assert not keeper.is_behind


async def test_a_disk_that_takes_nothing_ends_nothing(
    keeper: SnapshotKeeper, record: RedisTenantStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keeper.keep_up()
    before = content(file)
    await record.create_tenant(a_tenant(), BY)

    def full(path: Path, snapshot: Snapshot) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("tenants.snapshot_file.write_snapshot", full)
        assert not await keeper.keep_up()
    assert (content(file), keeper.is_behind) == (before, True)
    assert await keeper.keep_up()
    assert read_snapshot(file, "mark") == await record.snapshot(77.0)


async def test_of_several_gateways_one_writes_and_another_goes_on(
    record: RedisTenantStore, tmp_path: Path
) -> None:
    first, second = (SnapshotKeeper(record, tmp_path, FakeClock(at)) for at in (1.0, 2.0))
    assert [await first.keep_up(), await second.keep_up()] == [True, False]
    await record.create_tenant(a_tenant(), BY)
    assert [await second.keep_up(), await first.keep_up()] == [False, True]
    first.close()
    assert await second.keep_up()
    assert json.loads(content(tmp_path / FILE_NAME))["taken_at"] == 2.0
    second.close()
