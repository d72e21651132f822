"""Spools of dead gateways: found, applied once from their checkpoint on, kept, removed in the end."""

from __future__ import annotations

import multiprocessing
import shutil
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tenants.ledger.ledger import TOMBSTONE_S
from tenants.spool.applier import Figures
from tenants.spool.dead_spools import DeadSpools
from tenants.spool.folder import claim, is_done, spools, write_checkpoint
from tenants.spool.reading import read_lines
from tenants.store import StoreUnavailable
from tests.builders_spool import (
    DAY_S,
    NOON,
    TroubledLedger,
    a_settlement,
    a_spool,
    an_adjustment,
    spooled,
    sums,
)
from tests.builders_tenants import FakeClock


class Rig:
    def __init__(self, base: Path, keep_days: int = 90) -> None:
        self.clock = FakeClock(NOON)
        self.ledger = TroubledLedger(self.clock)
        self.figures = Figures()
        self.dead_spools = DeadSpools(base, self.ledger, self.clock, self.figures, keep_days)


async def test_a_dead_gateway_s_spool_is_applied_once_and_kept(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    folder = await spooled(tmp_path, "g1", *map(a_settlement, range(300)))
    assert await rig.dead_spools.replay() == 1
    assert rig.ledger.told == [f"r{number}" for number in range(300)]
    assert await rig.dead_spools.replay() == 0
    assert len(rig.ledger.told) == 300
    assert len(list(read_lines(folder))) == 300


async def test_an_adjustment_that_a_dead_gateway_only_wrote_down_is_in_force_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await spooled(tmp_path, "g1", an_adjustment(7), an_adjustment(8))
    await rig.ledger.adjust([an_adjustment(8)])
    assert await rig.dead_spools.replay() == 1
    assert (await rig.ledger.spends("acme", None)).day.credit == 15


async def test_a_living_gateway_s_spool_is_left_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    spool = a_spool(tmp_path)
    await spool.append(a_settlement())
    assert await rig.dead_spools.replay() == 0
    assert not is_done(spool.folder)
    await spool.close()
    assert await rig.dead_spools.replay() == 1


async def test_replay_begins_at_the_checkpoint(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    folder = await spooled(tmp_path, "g1", *map(a_settlement, range(5)))
    write_checkpoint(folder, list(read_lines(folder))[2].end)
    await rig.dead_spools.replay()
    assert rig.ledger.told == ["r3", "r4"]


async def test_a_ledger_that_is_away_leaves_it_for_the_next_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    folder = await spooled(tmp_path, "g1", a_settlement())
    rig.ledger.is_away = True
    with pytest.raises(StoreUnavailable):
        await rig.dead_spools.replay()
    lock = claim(folder)
    assert lock is not None, "nobody holds it"
    lock.close()
    rig.ledger.is_away = False
    assert await rig.dead_spools.replay() == 1
    assert rig.ledger.answers == ["applied"]


async def test_damage_costs_its_own_line_only_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    folder = await spooled(tmp_path, "g1", *map(a_settlement, range(5)))
    segment = folder / "2026-11-30.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"r2"', b'"rr"')[:-9])
    await rig.dead_spools.replay()
    assert rig.ledger.told == ["r0", "r1", "r3"]
    assert rig.figures.num_corrupt == 1
    assert "g1/2026-11-30.jsonl, byte" in caplog.text


async def test_a_spool_that_cannot_be_read_is_told_once_and_holds_no_other_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    broken = await spooled(tmp_path, "a", a_settlement(1))
    (broken / "2026-11-29.jsonl").mkdir()
    await spooled(tmp_path, "b", a_settlement(2))
    assert [await rig.dead_spools.replay() for _ in range(3)] == [1, 0, 0]
    assert rig.ledger.told == ["r2"]
    assert rig.dead_spools.num_unreadable == 1
    assert caplog.text.count("a, cannot be read") == 1
    (broken / "2026-11-29.jsonl").rmdir()
    assert await rig.dead_spools.replay() == 1
    assert rig.ledger.told == ["r2", "r1"]
    assert rig.dead_spools.num_unreadable == 0


async def test_an_unreadable_spool_that_somebody_took_away_is_forgotten(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    broken = await spooled(tmp_path, "a")
    (broken / "2026-11-29.jsonl").mkdir()
    await rig.dead_spools.replay()
    shutil.rmtree(broken)
    await rig.dead_spools.replay()
    assert rig.dead_spools.num_unreadable == 0


async def test_a_spool_that_cannot_be_removed_holds_no_other_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, keep_days=1)
    for name in ("a", "b"):
        await spooled(tmp_path, name, a_settlement())
    await rig.dead_spools.replay()
    (tmp_path / "a" / "2026-11-29.jsonl").mkdir()
    rig.clock.advance(30 * DAY_S)
    await rig.dead_spools.sweep()
    assert [folder.name for folder in spools(tmp_path)] == ["a"]
    assert "a is old and cannot be removed" in caplog.text


async def test_lines_older_than_the_ledger_s_memory_are_left_out_and_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    old = a_settlement(1, started_at=NOON - TOMBSTONE_S - 1)
    await spooled(tmp_path, "g1", old, a_settlement(2))
    await rig.dead_spools.replay()
    assert rig.ledger.told == ["r2"]
    assert rig.figures.num_expired == 1


async def test_two_that_come_at_once_apply_it_once(tmp_path: Path) -> None:
    """Each process has a ledger of its own, so what both applied would be there twice."""
    for number in range(8):
        await spooled(tmp_path, f"g{number}", *(a_settlement(100 * number + one) for one in range(50)))
    spawning = multiprocessing.get_context("spawn")
    barrier, told = spawning.Barrier(2), spawning.Queue()
    racers = [spawning.Process(target=race, args=(tmp_path, barrier, told)) for _ in range(2)]
    for racer in racers:
        racer.start()
    applied = [name for _ in racers for name in told.get(timeout=60)]
    for racer in racers:
        racer.join()
    assert sorted(applied) == sorted(f"r{100 * number + one}" for number in range(8) for one in range(50))


def race(base: Path, barrier: Barrier, told: multiprocessing.Queue[list[str]]) -> None:
    import asyncio

    rig = Rig(base)
    barrier.wait()
    asyncio.run(rig.dead_spools.replay())
    told.put(rig.ledger.told)


async def test_segments_of_dead_spools_go_when_they_are_too_old_and_the_folder_with_the_last(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, keep_days=90)
    await spooled(tmp_path, "dead", a_settlement(1))
    living = a_spool(tmp_path, "living")
    await living.append(a_settlement(2))
    await rig.dead_spools.replay()
    rig.clock.now = NOON + 90 * DAY_S
    await rig.dead_spools.sweep()
    assert [folder.name for folder in spools(tmp_path)] == ["dead", "living"]
    rig.clock.advance(DAY_S)
    await rig.dead_spools.sweep()
    assert [folder.name for folder in spools(tmp_path)] == ["living"]
    await living.close()


async def test_newer_segments_of_the_same_spool_stay(tmp_path: Path) -> None:
    rig = Rig(tmp_path, keep_days=1)
    clock = FakeClock(NOON)
    spool = a_spool(tmp_path, clock=clock)
    for number in range(4):
        await spool.append(a_settlement(number, started_at=clock.now))
        clock.advance(DAY_S)
    await spool.close()
    await rig.dead_spools.replay()
    rig.clock.now = NOON + 3 * DAY_S
    await rig.dead_spools.sweep()
    assert [line.entry.request_id for line in read_lines(spool.folder) if line.entry] == [
        "r2",
        "r3",
    ]


async def test_what_is_not_applied_yet_is_never_removed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, keep_days=1)
    folder = await spooled(tmp_path, "g1", a_settlement(1))
    rig.clock.advance(30 * DAY_S)
    await rig.dead_spools.sweep()
    assert len(list(read_lines(folder))) == 1


async def test_sweeping_is_for_once_an_hour(tmp_path: Path) -> None:
    rig = Rig(tmp_path, keep_days=1)
    rig.clock.advance(30 * DAY_S)
    await rig.dead_spools.sweep()
    await spooled(tmp_path, "g1", a_settlement(1))
    await rig.dead_spools.replay()
    await rig.dead_spools.sweep()
    assert len(spools(tmp_path)) == 1
    rig.clock.advance(3600)
    await rig.dead_spools.sweep()
    assert spools(tmp_path) == []


async def test_no_folder_of_spools_is_no_fault(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "none")
    assert await rig.dead_spools.replay() == 0
    await rig.dead_spools.sweep()
    assert (await sums(rig.ledger)).requests == 0
