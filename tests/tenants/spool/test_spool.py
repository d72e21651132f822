"""The spool: what `append` returned for is on the disk, whole; what it raised for is not there at all."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from threading import Event

import pytest

from tenants.spool.folder import SpoolTaken, claim, make
from tenants.spool.reading import read_lines
from tenants.spool.spool import Spool
from tests.builders_spool import DAY_S, NOON, Disk, a_settlement, a_spool
from tests.builders_tenants import FakeClock

FULL = OSError(errno.ENOSPC, "No space left on device")


def ids(folder: Path) -> list[str]:
    lines = list(read_lines(folder))
    assert all(line.entry for line in lines)
    return [line.entry.request_id for line in lines if line.entry]


async def test_an_append_returns_when_its_line_was_synced_with_the_file_and_its_name(tmp_path: Path) -> None:
    disk = Disk()
    spool = a_spool(tmp_path, disk=disk)
    for number in range(3):
        await spool.append(a_settlement(number))
        assert disk.synced[0] is None, "the folder holds the file's name"
        assert disk.synced[-1] == (spool.folder / "2026-11-30.jsonl").read_bytes()
        assert (disk.synced[-1] or b"").count(b"\n") == number + 1
    await spool.close()


async def test_appends_that_come_together_share_one_sync(tmp_path: Path) -> None:
    disk, gate = Disk(), Event()
    folder, lock = make(tmp_path, "g1")
    spool = Spool(folder, lock, lambda: NOON, disk, collect=lambda: gate.wait() and None)
    appends = [asyncio.ensure_future(spool.append(a_settlement(number))) for number in range(100)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*appends)
    assert [content is None for content in disk.synced] == [True, False]
    assert ids(folder) == [f"r{number}" for number in range(100)]
    await spool.close()


async def test_a_cancelled_caller_has_written_all_the_same(tmp_path: Path) -> None:
    gate = Event()
    folder, lock = make(tmp_path, "g1")
    spool = Spool(folder, lock, lambda: NOON, collect=lambda: gate.wait() and None)
    leaving = asyncio.ensure_future(spool.append(a_settlement(1)))
    staying = asyncio.ensure_future(spool.append(a_settlement(2)))
    await asyncio.sleep(0)
    leaving.cancel()
    gate.set()
    await staying
    assert leaving.cancelled() or leaving.cancelling()
    assert ids(folder) == ["r1", "r2"]
    await spool.close()


async def test_a_full_disk_is_told_counted_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    disk = Disk()
    spool = a_spool(tmp_path, disk=disk)
    await spool.append(a_settlement(1))
    disk.fault = FULL
    with pytest.raises(OSError, match="No space left"):
        await spool.append(a_settlement(2))
    assert ids(spool.folder) == ["r1"]
    assert (spool.num_failed_writes, spool.num_lines) == (1, 1)
    disk.fault = None
    await spool.append(a_settlement(3))
    assert ids(spool.folder) == ["r1", "r3"]
    await spool.close()


async def test_a_file_that_was_removed_takes_nothing(tmp_path: Path) -> None:
    """It would be gone with the process, and nobody would have been charged."""
    spool = a_spool(tmp_path)
    await spool.append(a_settlement(1))
    shutil.rmtree(spool.folder)
    with pytest.raises(FileNotFoundError):
        await spool.append(a_settlement(2))
    assert (spool.num_lines, spool.num_failed_writes) == (1, 1)
    await spool.close()


async def test_what_could_not_be_cut_off_is_cut_off_before_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    spool = a_spool(tmp_path, disk=disk)
    await spool.append(a_settlement(1))
    disk.fault = FULL
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", _fails)
        with pytest.raises(OSError, match="No space left"):
            await spool.append(a_settlement(2_000_000))
    disk.fault = None
    await spool.append(a_settlement(3))
    assert ids(spool.folder) == ["r1", "r3"]
    await spool.close()


async def test_a_write_that_the_system_cuts_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: write(file, data[:7], offset))
    spool = a_spool(tmp_path)
    await spool.append(a_settlement(1))
    await spool.append(a_settlement(2))
    assert ids(spool.folder) == ["r1", "r2"]
    await spool.close()


async def test_each_utc_day_has_a_segment_and_a_clock_set_back_opens_none(tmp_path: Path) -> None:
    clock = FakeClock(NOON)
    spool = a_spool(tmp_path, clock=clock)
    for number, step in enumerate((0.0, DAY_S / 2, -DAY_S, 2 * DAY_S)):
        clock.advance(step)
        await spool.append(a_settlement(number))
    days = ["2026-11-30.jsonl", "2026-12-01.jsonl", "2026-12-02.jsonl"]
    assert sorted(path.name for path in spool.folder.glob("*.jsonl")) == days
    assert ids(spool.folder) == ["r0", "r1", "r2", "r3"]
    assert spool.num_lines == 4
    await spool.close()


async def test_the_folder_is_its_gateway_s_until_it_closes(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    with pytest.raises(SpoolTaken):
        a_spool(tmp_path)
    assert claim(spool.folder) is None
    await spool.close()
    lock = claim(spool.folder)
    assert lock is not None
    lock.close()
    assert os.listdir(tmp_path) == ["g1"]


async def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    await spool.append(a_settlement())
    assert spool.folder.stat().st_mode & 0o077 == 0
    assert (spool.folder / "2026-11-30.jsonl").stat().st_mode & 0o077 == 0
    await spool.close()


async def test_closing_writes_what_was_appended(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, "g1", lambda: NOON)
    append = asyncio.ensure_future(spool.append(a_settlement()))
    await asyncio.sleep(0)
    await spool.close()
    await append
    assert ids(spool.folder) == ["r1"]


def _fails(*arguments: object) -> None:
    raise OSError(errno.EIO, "Input/output error")
