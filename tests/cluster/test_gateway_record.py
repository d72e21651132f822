"""One gateway's part in the record, whole: what it exports, its end, and a loss on another machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from cluster.gateway_record import GatewayRecord
from cluster.record_metrics import COUNTERS, GAUGES
from cluster.settings import SPOOLS, ServeSettings
from cluster.telemetry import Telemetry
from tenants.ledger.grant import Granted
from tenants.ledger.state import Spend
from tenants.reseed import EPOCH_KEY, mark_of
from tenants.snapshot_file import FILE_NAME
from tenants.spool.folder import mark_done
from tenants.spool.reading import utc_day
from tenants.store_redis import RedisTenantStore
from tests.builders_spool import HANG_S, a_settlement, spooled, until
from tests.builders_tenants import SECRET, seed
from tests.tenants.ledger.builders import an_ask

Made = Callable[[str], GatewayRecord]


@pytest.fixture
def made(redis: Redis, tmp_path: Path) -> Made:
    """A gateway's record, by the name of its machine, which has a state directory of its own."""

    def make(machine: str) -> GatewayRecord:
        settings = ServeSettings(state_dir=tmp_path / machine)
        return GatewayRecord(redis, settings, f"g_{machine}", SECRET, Telemetry(dict).tenants)

    return make


async def test_counts_are_counters_and_levels_are_gauges(made: Made) -> None:
    record, registry = made("here"), CollectorRegistry()
    record.register(registry)
    record.start()
    found = {family.name: (family.type, len(family.samples)) for family in registry.collect()}
    assert found == {
        **{f"headrace_{name}": ("counter", 1) for name in COUNTERS},
        **{f"headrace_{name}": ("gauge", 1) for name in GAUGES},
    }
    assert registry.get_sample_value("headrace_gateways_live") == 1
    assert registry.get_sample_value("headrace_spool_failed_writes_total") == 0
    await record.close()


async def test_whatever_fails_at_the_end_what_was_settled_is_applied(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, registry, now = made("here"), CollectorRegistry(), time.time()
    record.register(registry)
    record.start()

    async def fails() -> None:
        raise OSError("no space left")

    monkeypatch.setattr(record.standby, "close", fails)
    record.books.settled(a_settlement(1, started_at=now, ended_at=now))
    with pytest.raises(OSError, match="no space"):
        await record.close()
    today = utc_day(now)
    (row,) = await record.ledger.usage("acme", today, today)
    assert (row.cost, registry.get_sample_value("headrace_settlements_pending")) == (1, 0)


async def test_an_emptied_record_knows_what_runs_in_two_gateways_from_its_first_moment_on(
    made: Made, redis: Redis, tmp_path: Path
) -> None:
    store = RedisTenantStore(redis)
    await seed(store, mark=mark_of(SECRET))
    machines = ("here", "there")
    records = [made(machine) for machine in machines]
    for record in records:
        record.start()
    await until(lambda: all((tmp_path / machine / FILE_NAME).exists() for machine in machines))
    await until(lambda: all(record.standby.num_gateways == 2 for record in records))
    for number, record in enumerate(records):
        ask = an_ask(f"r{number}", started_at=time.time())
        record.books.open(ask, Granted(max_tokens=20, reserved_cost=30))
    await redis.flushall()
    async with asyncio.timeout(HANG_S):
        while not await redis.exists(EPOCH_KEY):
            pass  # asking lets the loop turn
    assert (await records[0].ledger.spends("acme", None)).day == Spend(reserved=60)
    for record in records:
        await record.close()


async def test_an_empty_record_hears_of_the_spools_when_all_have_told_what_runs(
    made: Made, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends while another gateway tells what runs is in its spool, and runs no more."""
    record, spools, now = made("here"), tmp_path / "here" / SPOOLS, time.time()

    async def num_missing(num_gateways: int) -> int:
        if (spools / "g1").exists():
            return 0
        mark_done(await spooled(spools, "g1", a_settlement(7, started_at=now, ended_at=now), at=now))
        return 1

    await redis.set(EPOCH_KEY, "first")
    record.start()
    monkeypatch.setattr(record._membership, "num_missing", num_missing)
    await record._refill()
    assert (await record.ledger.spends("acme", None)).day == Spend(spent=7)
    await record.close()


async def test_what_this_machine_spent_is_told_to_a_record_that_another_wrote_back(
    made: Made, redis: Redis, tmp_path: Path
) -> None:
    now = time.time()
    folder = await spooled(
        tmp_path / "here" / SPOOLS, "g1", a_settlement(7, started_at=now, ended_at=now), at=now
    )
    mark_done(folder)  # the life before has it
    await redis.set(EPOCH_KEY, "first")
    (tmp_path / "here" / "epoch").write_text("before")
    record = made("here")
    today = utc_day(now)
    record.start()
    rows = await record.ledger.usage("acme", today, today)
    async with asyncio.timeout(10):
        while not rows:
            await asyncio.sleep(0)
            rows = await record.ledger.usage("acme", today, today)
    assert sum(row.cost for row in rows) == 7
    await record.close()
