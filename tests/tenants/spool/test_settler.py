"""From the disk to the ledger: each settlement once, in order, whatever either of them does."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tenants.ledger.ledger import TOMBSTONE_S
from tenants.ledger.usage import Sums
from tenants.spool.applier import REPEAT_S
from tenants.spool.folder import read_checkpoint
from tenants.spool.reading import START, read_lines
from tenants.spool.settler import MAX_DELAY_S, Settler
from tenants.store import CorruptRecord, StoreUnavailable
from tests.builders_spool import (
    NOON,
    SettlerRig,
    TroubledLedger,
    a_settlement,
    a_spool,
    an_adjustment,
    sums,
    until,
)
from tests.builders_tenants import FakeClock

FULL = OSError(errno.ENOSPC, "No space left on device")


async def test_the_ledger_has_it_soon_after_the_disk(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    await rig.settle(1, 2, 3)
    assert rig.ledger.told == ["r1", "r2", "r3"]
    assert rig.ledger.answers == ["applied"] * 3
    assert (rig.settler.num_pending, rig.settler.oldest_pending_s) == (0, 0.0)
    assert await rig.settler.close(1.0) == 0


async def test_a_caller_that_leaves_has_settled_all_the_same(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    leaving = asyncio.ensure_future(rig.settler.settle(a_settlement(1)))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await until(lambda: bool(rig.ledger.told))
    await rig.settler.close(1.0)
    assert rig.ledger.told == ["r1"]


async def test_an_adjustment_is_on_the_disk_first_then_in_force_and_counts_once(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    await rig.settler.adjust(an_adjustment(7))
    assert [line.entry for line in read_lines(rig.spool.folder)] == [an_adjustment(7)]
    assert (await rig.ledger.spends("acme", None)).day.credit == 7
    await rig.drained()
    await rig.settler.close(1.0)
    assert (rig.settler.num_pending, (await rig.ledger.spends("acme", None)).day.credit) == (0, 7)


async def test_an_adjustment_that_the_disk_does_not_take_has_never_been(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    rig.disk.fault = FULL
    with pytest.raises(OSError, match="No space left"):
        await rig.settler.adjust(an_adjustment(7))
    rig.disk.fault = None
    await rig.settle(1)
    assert (await rig.ledger.spends("acme", None)).day.credit == 0
    assert len(list(read_lines(rig.spool.folder))) == 1
    await rig.settler.close(1.0)


async def test_an_adjustment_that_the_ledger_does_not_hear_holds_when_it_is_back(
    tmp_path: Path,
) -> None:
    rig = SettlerRig(tmp_path)
    rig.ledger.is_away = True
    with pytest.raises(StoreUnavailable):
        await rig.settler.adjust(an_adjustment(7))
    rig.ledger.is_away = False
    await rig.drained()
    assert (await rig.ledger.spends("acme", None)).day.credit == 7
    await rig.settler.close(1.0)


async def test_while_the_ledger_is_away_settling_goes_on_and_is_counted(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path, then=lambda count: rig.clock.advance(1))
    rig.ledger.is_away = True
    for number in range(5):
        await rig.settler.settle(a_settlement(number))
    assert rig.settler.num_pending == 5
    await rig.paused(8)
    assert rig.settler.oldest_pending_s >= 1
    rig.ledger.is_away = False
    await rig.drained()
    assert list(dict.fromkeys(rig.ledger.told)) == [f"r{number}" for number in range(5)]
    assert (await sums(rig.ledger)).requests == 5
    assert rig.pauses.seconds[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(rig.pauses.seconds) == MAX_DELAY_S
    await rig.settler.close(1.0)


async def test_after_an_outage_the_last_minute_is_applied_again(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    await rig.settle(1)
    rig.clock.advance(REPEAT_S)
    await rig.settle(2)
    await rig.settler.save_checkpoint()
    rig.clock.advance(REPEAT_S - 1)
    await rig.settle(3)
    await rig.settler.save_checkpoint()
    rig.ledger.is_away = True
    await rig.settler.settle(a_settlement(4))
    await rig.paused(1)
    rig.clock.advance(600)
    await rig.settler.save_checkpoint()
    rig.ledger.told.clear()
    rig.ledger.is_away = False
    await rig.drained()
    assert rig.ledger.told == ["r4", "r2", "r3", "r4"]
    assert (await sums(rig.ledger)).cost == 1 + 2 + 3 + 4
    await rig.settler.close(1.0)


async def test_an_outage_that_somebody_else_saw_repeats_too(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    await rig.settle(1)
    rig.settler.note_outage()
    rig.clock.advance(10 * REPEAT_S)
    await rig.settler.save_checkpoint()
    assert read_checkpoint(rig.spool.folder) == START
    rig.ledger.told.clear()
    rig.settler.repeat_recent()
    await rig.drained()
    assert rig.ledger.told == ["r1"]
    await rig.settler.close(1.0)


async def test_an_end_of_an_outage_lets_the_checkpoint_stand_until_it_is_made_up_for(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    await rig.settle(1)
    rig.settler.note_outage()
    rig.clock.advance(REPEAT_S)
    rig.ledger.told.clear()
    rig.settler.repeat_recent()
    await rig.settler.save_checkpoint()
    assert read_checkpoint(rig.spool.folder) == START
    await rig.drained()
    assert rig.ledger.told == ["r1"]
    await rig.settler.close(1.0)


async def test_who_closes_before_an_outage_is_made_up_for_leaves_that_to_the_next(tmp_path: Path) -> None:
    clock = FakeClock(NOON)
    ledger, spool = TroubledLedger(clock), a_spool(tmp_path, clock=clock)
    is_waiting = asyncio.Event()

    async def wait_for_ever(seconds: float) -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    settler = Settler(spool, ledger, clock, wait_for_ever)
    settler.start()
    await settler.settle(a_settlement(1))
    await settler.drained()
    clock.advance(REPEAT_S)
    ledger.is_away = True
    await settler.settle(a_settlement(2))
    await is_waiting.wait()
    settler.repeat_recent()
    await settler.save_checkpoint()
    assert read_checkpoint(spool.folder) == START
    assert await settler.close(0.0) == 1
    assert read_checkpoint(spool.folder) == START


async def test_the_checkpoint_trails_by_a_minute_and_a_clean_end_writes_the_whole(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    await rig.settle(1)
    await rig.settler.save_checkpoint()
    assert read_checkpoint(rig.spool.folder) == START
    first = rig.spool.end
    rig.clock.advance(REPEAT_S)
    await rig.settle(2)
    await rig.settler.save_checkpoint()
    assert read_checkpoint(rig.spool.folder) == first
    await rig.settler.close(1.0)
    assert read_checkpoint(rig.spool.folder) == rig.spool.end


async def test_who_closes_while_the_ledger_is_away_leaves_it_to_the_spool(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    rig.ledger.is_away = True
    await rig.settler.settle(a_settlement(1))
    assert await rig.settler.close(0.0) == 1
    assert read_checkpoint(rig.spool.folder) == START


async def test_what_the_disk_does_not_take_the_ledger_gets_and_the_disk_later(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path, then=lambda count: setattr(rig.disk, "fault", None) if count == 3 else None)
    await rig.settle(1)
    rig.disk.fault = FULL
    with pytest.raises(OSError, match="No space left"):
        await rig.settler.settle(a_settlement(2))
    assert rig.ledger.told == ["r1", "r2"]
    assert rig.settler.num_failed_writes >= 1
    assert rig.settler.num_pending == 1
    await rig.drained()
    assert rig.spool.num_lines == 2
    assert rig.ledger.answers == ["applied", "applied", "duplicate"]
    await rig.settle(3)
    assert (await sums(rig.ledger)).cost == 6
    await rig.settler.close(1.0)


async def test_what_is_too_much_to_keep_for_the_disk_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.spool.settler.MAX_UNWRITTEN", 2)
    rig = SettlerRig(tmp_path)
    rig.disk.fault = FULL
    for number in range(5):
        with pytest.raises(OSError, match="No space left"):
            await rig.settler.settle(a_settlement(number))
    assert (rig.settler.num_dropped, rig.settler.num_pending) == (3, 2)
    assert rig.ledger.told == ["r0", "r1", "r2", "r3", "r4"]
    await rig.settler.close(0.0)


async def test_a_full_disk_holds_nothing_up_that_is_on_it_already(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    rig.ledger.is_away = True
    await rig.settler.settle(a_settlement(1))
    rig.disk.fault = FULL
    with pytest.raises(OSError, match="No space left"):
        await rig.settler.settle(a_settlement(2))
    await rig.paused(len(rig.pauses.seconds) + 2)
    rig.ledger.is_away = False
    await until(lambda: bool(rig.ledger.told))
    assert rig.ledger.told == ["r1"]
    assert await rig.settler.close(0.0) == 1


async def test_a_tenant_whose_books_are_damaged_holds_nobody_else_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = SettlerRig(tmp_path)
    settle = rig.ledger.settle

    async def damaged(settlements):  # type: ignore[no-untyped-def]
        if any(one.tenant_id == "bad" for one in settlements):
            raise CorruptRecord("money of bad")
        return await settle(settlements)

    rig.ledger.settle = damaged  # type: ignore[method-assign]
    for number, tenant in enumerate(("acme", "bad", "acme")):
        await rig.settler.settle(a_settlement(number, tenant_id=tenant))
    await rig.drained()
    assert rig.ledger.told == ["r0", "r2"]
    assert rig.settler.figures.num_refused == 1
    assert "request r1 cannot be settled: money of bad" in caplog.text
    await rig.settler.close(1.0)


async def test_a_failure_that_nobody_foresaw_is_logged_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = SettlerRig(tmp_path)
    settle, faults = rig.ledger.settle, [RuntimeError("a fault")]

    async def fails_once(settlements):  # type: ignore[no-untyped-def]
        if faults:
            raise faults.pop()
        return await settle(settlements)

    rig.ledger.settle = fails_once  # type: ignore[method-assign]
    await rig.settle(1)
    assert rig.ledger.told == ["r1"]
    assert "a fault" in caplog.text
    await rig.settler.close(1.0)


async def test_what_waited_longer_than_the_ledger_remembers_is_not_charged_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = SettlerRig(tmp_path)
    rig.ledger.is_away = True
    await rig.settler.settle(a_settlement(1))
    rig.clock.advance(TOMBSTONE_S)
    await rig.settler.settle(a_settlement(2, started_at=rig.clock.now))
    rig.ledger.is_away = False
    await rig.drained()
    assert set(rig.ledger.told) == {"r2"}
    assert rig.settler.figures.num_expired == 1
    assert "r1" in caplog.text
    await rig.settler.close(1.0)


async def test_damage_on_the_disk_is_counted_once_however_often_it_is_passed(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    rig.ledger.is_away = True
    await rig.settler.settle(a_settlement(1))
    segment = rig.spool.folder / "2026-11-30.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b"r1", b"r9"))
    await rig.settler.settle(a_settlement(2))
    rig.ledger.is_away = False
    await rig.drained()
    rig.settler.repeat_recent()
    await rig.drained()
    assert set(rig.ledger.told) == {"r2"}
    assert rig.settler.figures.num_corrupt == 1
    await rig.settler.close(1.0)


async def test_ten_thousand_with_repeats_are_each_applied_once(tmp_path: Path) -> None:
    rig = SettlerRig(tmp_path)
    for begin in range(0, 10_000, 500):
        await asyncio.gather(
            *(rig.settler.settle(a_settlement(number, cost=3)) for number in range(begin, begin + 500))
        )
        rig.clock.advance(7)
        await rig.settler.save_checkpoint()
        if begin % 2500 == 0:
            rig.settler.repeat_recent()
    await rig.drained()
    assert len(rig.ledger.told) > 10_000
    assert await sums(rig.ledger) == Sums(10_000, 100_000, 40_000, 70_000, 30_000)
    await rig.settler.close(5.0)
