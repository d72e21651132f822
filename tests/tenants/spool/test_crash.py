"""A gateway that is killed at any moment: what it was told is safe is there, whole, and applied once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from redis.asyncio import Redis

from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.redis_ledger import RedisLedger
from tenants.spool.applier import Figures
from tenants.spool.dead_spools import DeadSpools
from tenants.spool.reading import read_lines
from tests.builders_spool import NOON, sums

REPOSITORY = Path(__file__).resolve().parents[3]
NUM_KILLS = 3


def killed(base: Path, gateway_id: str, first: int, after: int) -> list[str]:
    """Ids whose append had returned before the process was killed, `after` of them at least."""
    command = [sys.executable, "-m", "tests.tenants.spool.crasher", str(base), gateway_id, str(first)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [next(process.stdout).strip() for _ in range(after)]
        process.kill()
        told += process.stdout.read().split()
    return told


async def test_what_was_told_to_be_safe_is_there_whole_and_is_applied_once(
    tmp_path: Path, redis: Redis
) -> None:
    rng, told = random.Random(5), dict[str, list[str]]()
    for kill in range(NUM_KILLS):
        told[f"g{kill}"] = killed(tmp_path, f"g{kill}", kill * 10**6, after=rng.randint(1, 200))
    written = {gateway_id: lines_of(tmp_path / gateway_id) for gateway_id in told}
    for gateway_id, safe in told.items():
        assert set(safe) <= set(written[gateway_id])
    expected = [name for names in written.values() for name in names]
    assert len(set(expected)) == len(expected)
    for ledger in (
        MemoryLedger(lambda: round(NOON * 10**6)),
        RedisLedger(redis, lambda: round(NOON * 10**6)),
    ):
        dead_spools = DeadSpools(tmp_path, ledger, lambda: NOON, Figures())
        for _ in range(2):
            assert await dead_spools.replay() == NUM_KILLS
            for gateway_id in told:  # as if the marks had been lost
                (tmp_path / gateway_id / "done").unlink()
        assert (await sums(ledger)).requests == len(expected)


def lines_of(folder: Path) -> list[str]:
    lines = list(read_lines(folder))
    assert all(line.entry for line in lines), "no line is half"
    return [line.entry.request_id for line in lines if line.entry]
