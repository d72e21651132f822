"""After Redis came back empty: one writes the record back, all or nothing, wherever a crash falls."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from tenants.reseed import EPOCH_KEY, LOCK_S, RENEW_EVERY_S, Reseeder, make_whole, mark_of
from tenants.snapshot import Snapshot
from tenants.snapshot_file import FILE_NAME, SnapshotError, SnapshotKeeper, write_snapshot
from tenants.store import StoreUnavailable
from tenants.store_redis import RedisTenantStore
from tenants.tier import BUILT_IN
from tests.builders_tenants import BY, SECRET, FakeClock, a_key, a_tenant, a_tier, an_account, seed

LOCK_KEY = "headrace:{directory}:lock"
replace = msgspec.structs.replace


class Rebuilds:
    """A rebuild that counts its runs, and can be held up or fail."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.num_done = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def __call__(self) -> None:
        self.num_begun += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.num_done += 1


class Pauses:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((seconds, woken))
        await woken

    def wake(self, seconds: float) -> int:
        """Those who sleep for so long; how many."""
        due = [woken for length, woken in self._sleepers if length == seconds and not woken.done()]
        for woken in due:
            woken.set_result(None)
        return len(due)

    async def waking(self, seconds: float, work: asyncio.Future) -> None:
        """Until `work` is done, nobody sleeps for so long."""
        await until(lambda: self.wake(seconds) >= 0 and work.done())
        await work


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn; a condition that never comes true is the test's time-out."""
    async with asyncio.timeout(10):
        for _ in iter(condition, True):
            await asyncio.sleep(0)


@pytest.fixture
async def copy(redis: Redis, patient: None, tmp_path: Path) -> Snapshot:
    """Of a record with tenants, in its file; Redis has lost everything since."""
    record = RedisTenantStore(redis)
    await seed(record, [(a_key(), a_tenant())], mark_of(SECRET))
    await record.create_tier(a_tier("gold", weight=5), BY)
    await record.create_tenant(a_tenant("b", tier="gold", overrides={"budget_day": None}), BY)
    await record.create_key(a_key(2, tenant_id="b", addresses=("10.0.0.0/8",)), BY)
    snapshot = await record.snapshot(500.0)
    write_snapshot(tmp_path / FILE_NAME, snapshot)
    await redis.flushall()
    return snapshot


@pytest.fixture
def reseeder(redis: Redis, tmp_path: Path) -> Callable[..., Reseeder]:
    def make(rebuild: Rebuilds, pauses: Pauses | None = None, secret: bytes = SECRET) -> Reseeder:
        sleep = (pauses or Pauses()).sleep
        return Reseeder(RedisTenantStore(redis), tmp_path / FILE_NAME, secret, rebuild, sleep)

    return make


async def test_the_record_comes_back_as_its_copy_says(
    redis: Redis, copy: Snapshot, reseeder: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    record, rebuild = RedisTenantStore(redis), Rebuilds()
    with caplog.at_level(logging.WARNING):
        await reseeder(rebuild).reseed()
    assert "it is back as it was at 500, with 2 tenants and 2 keys" in caplog.text
    back = await record.snapshot(500.0)
    assert by_id(replace(back, change_count=copy.change_count)) == by_id(copy)
    assert back.change_count > copy.change_count
    assert (await record.find_key(a_key().key_hash), rebuild.num_done) == (an_account(), 1)
    assert [tenant.tenant_id for tenant in await record.list_tenants()] == ["acme", "b"]
    assert await record.list_keys("b") == [a_key(2, tenant_id="b", addresses=("10.0.0.0/8",))]
    (entry,) = await record.list_audit()
    assert (entry.action, entry.changes["taken_at"]) == ("record.restore", (None, 500.0))
    assert await redis.exists(LOCK_KEY) == 0


def by_id(snapshot: Snapshot) -> Snapshot:
    """Redis' hashes have no order."""
    return replace(
        snapshot,
        tiers=tuple(sorted(snapshot.tiers, key=lambda tier: tier.name)),
        tenants=tuple(sorted(snapshot.tenants, key=lambda tenant: tenant.tenant_id)),
        keys=tuple(sorted(snapshot.keys, key=lambda key: key.key_id)),
    )


async def test_the_record_says_nothing_until_it_is_whole(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    record, rebuild = RedisTenantStore(redis), Rebuilds()
    rebuild.gate.clear()
    task = asyncio.create_task(reseeder(rebuild).reseed())
    await until(lambda: rebuild.num_begun > 0)
    assert await record.epoch() is None
    with pytest.raises(StoreUnavailable, match="came back empty"):
        await record.find_key(a_key().key_hash)
    with pytest.raises(StoreUnavailable, match="came back empty"):
        await record.create_tenant(a_tenant("c"), BY)
    rebuild.gate.set()
    await task
    assert await record.find_key(a_key().key_hash) == an_account()


async def test_who_comes_when_it_is_whole_again_does_not_rebuild(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    """It may have looked just before."""
    await reseeder(Rebuilds()).reseed()
    record = RedisTenantStore(redis)
    assert not await record.lock("late")
    assert await redis.exists(LOCK_KEY) == 0


async def test_a_whole_record_is_left_alone(redis: Redis, copy: Snapshot, reseeder: Callable) -> None:
    record, rebuild = RedisTenantStore(redis), Rebuilds()
    await seed(record, mark=mark_of(SECRET))
    epoch = await record.epoch()
    await reseeder(rebuild).reseed()
    assert (await record.epoch(), await record.list_tenants(), rebuild.num_begun) == (epoch, [], 0)


async def test_of_many_that_race_one_writes_and_the_others_wait(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    rebuild, pauses = Rebuilds(), Pauses()
    rebuild.gate.clear()
    tasks = [asyncio.create_task(reseeder(rebuild, pauses).reseed()) for _ in range(8)]
    await until(lambda: rebuild.num_begun > 0 and pauses.wake(0.2) > 0)
    assert not any(task.done() for task in tasks)
    rebuild.gate.set()
    await pauses.waking(0.2, asyncio.gather(*tasks))
    assert (rebuild.num_begun, rebuild.num_done) == (1, 1)
    assert len(await RedisTenantStore(redis).list_audit()) == 1


async def test_a_crash_in_the_rebuild_leaves_nothing_and_the_next_begins_anew(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    record, crashing = RedisTenantStore(redis), Rebuilds()
    crashing.gate.clear()
    dying = asyncio.create_task(reseeder(crashing).reseed())
    await until(lambda: crashing.num_begun > 0)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    assert [await record.epoch(), await record.mark()] == [None, None]
    assert 0 < await redis.pttl(LOCK_KEY) <= LOCK_S * 1000  # the dead one's lock ends by itself
    rebuild, pauses = Rebuilds(), Pauses()
    waiting = asyncio.create_task(reseeder(rebuild, pauses).reseed())
    await until(lambda: pauses.wake(0.2) > 0)
    assert rebuild.num_begun == 0
    await redis.delete(LOCK_KEY)
    await pauses.waking(0.2, waiting)
    assert await record.find_key(a_key().key_hash) == an_account()


class Crashes:
    """A record whose `n`-th call fails: before it reached Redis, or after, with its answer lost."""

    def __init__(self, record: RedisTenantStore, n: int, is_done: bool) -> None:
        self._record = record
        self._left = n
        self._is_done = is_done
        self.has_crashed = False

    def __getattr__(self, name: str) -> Callable:
        async def call(*arguments: object) -> object:
            self._left -= 1
            if self._left:
                return await getattr(self._record, name)(*arguments)
            self.has_crashed = True
            if self._is_done:
                await getattr(self._record, name)(*arguments)
            raise StoreUnavailable("crashed")

        return call


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_wherever_a_crash_falls_there_is_all_of_the_record_or_nothing_and_the_next_makes_it_whole(
    redis: Redis, copy: Snapshot, reseeder: Callable, is_done: bool
) -> None:
    record = RedisTenantStore(redis)
    for n in range(1, 10):
        await redis.flushall()
        crashing = Crashes(record, n, is_done)
        with suppress(StoreUnavailable):
            await make_whole(crashing, copy, Rebuilds())
        there = {name.decode().rpartition(":")[2] for name in await redis.keys("*")}
        assert (
            there <= {"lock"} or {"epoch", "mark", "tiers", "tenants", "keys", "hashes", "changes"} <= there
        )
        await redis.delete(LOCK_KEY)  # it ends by itself
        await reseeder(Rebuilds()).reseed()
        assert by_id(replace(await record.snapshot(500.0), change_count=copy.change_count)) == by_id(copy)
        assert len(await record.list_audit()) == 1
        if not crashing.has_crashed:
            break
    assert n == 4  # epoch, lock, restore; the fourth call never comes


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("broken")])
async def test_a_rebuild_that_fails_makes_no_record(
    redis: Redis, copy: Snapshot, reseeder: Callable, error: Exception
) -> None:
    rebuild = Rebuilds()
    rebuild.error = error
    with pytest.raises(type(error), match=str(error)):
        await reseeder(rebuild).reseed()
    assert await RedisTenantStore(redis).epoch() is None


async def test_who_loses_the_lock_stops_and_writes_nothing(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    rebuild, pauses = Rebuilds(), Pauses()
    rebuild.gate.clear()
    task = asyncio.create_task(reseeder(rebuild, pauses).reseed())
    await until(lambda: rebuild.num_begun > 0)
    await redis.set(LOCK_KEY, "another")
    await until(lambda: pauses.wake(RENEW_EVERY_S) > 0)
    await until(lambda: pauses.wake(0.2) > 0)  # it waits as everybody does
    assert (rebuild.num_begun, rebuild.num_done) == (1, 0)
    assert await redis.get(LOCK_KEY) == b"another"
    assert await RedisTenantStore(redis).epoch() is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_long_rebuild_keeps_its_lock(redis: Redis, copy: Snapshot, reseeder: Callable) -> None:
    rebuild, pauses = Rebuilds(), Pauses()
    rebuild.gate.clear()
    task = asyncio.create_task(reseeder(rebuild, pauses).reseed())
    await until(lambda: rebuild.num_begun > 0)
    for _ in range(3):
        await redis.pexpire(LOCK_KEY, 100_000)
        await until(lambda: pauses.wake(RENEW_EVERY_S) > 0)
        async with asyncio.timeout(10):
            while await redis.pttl(LOCK_KEY) > LOCK_S * 1000:
                pass  # asking lets the loop turn
    rebuild.gate.set()
    await task
    assert rebuild.num_done == 1


async def test_redis_that_is_emptied_again_meanwhile_is_rebuilt_anew(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    rebuild, pauses = Rebuilds(), Pauses()
    rebuild.gate.clear()
    task = asyncio.create_task(reseeder(rebuild, pauses).reseed())
    await until(lambda: rebuild.num_begun > 0)
    await redis.flushall()
    rebuild.gate.set()
    await task
    assert rebuild.num_done == 2  # what the first one wrote is gone
    assert await RedisTenantStore(redis).find_key(a_key().key_hash) == an_account()


async def test_an_epoch_alone_that_was_lost_costs_no_change_of_the_record(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    record = RedisTenantStore(redis)
    await reseeder(Rebuilds()).reseed()
    await record.delete_tenant("acme", None, BY)
    await redis.delete(EPOCH_KEY)
    await reseeder(Rebuilds()).reseed()
    assert [tenant.tenant_id for tenant in await record.list_tenants()] == ["b"]


async def test_what_was_changed_after_the_copy_is_undone_and_the_log_says_how_old_it_was(
    redis: Redis, record: RedisTenantStore, tmp_path: Path
) -> None:
    await redis.flushall()
    await seed(record, [(a_key(), a_tenant())], mark_of(SECRET))
    clock = FakeClock(100.0)
    keeper = SnapshotKeeper(record, tmp_path, clock)
    await record.create_key(a_key(2), BY)
    await keeper.keep_up()
    clock.advance(0.5)
    await record.delete_key(a_key(1).key_id, None, BY)
    await keeper.keep_up()
    clock.advance(0.5)
    await record.delete_key(a_key(2).key_id, None, BY)  # and Redis is gone before the next look
    await redis.flushall()
    keeper.close()
    await Reseeder(record, tmp_path / FILE_NAME, SECRET, Rebuilds()).reseed()
    assert await record.list_keys("acme") == [a_key(2)]
    (entry,) = await record.list_audit()
    assert entry.changes["taken_at"] == (None, 100.5)


@pytest.mark.parametrize("content", [None, b"", b'{"mark":'], ids=["none", "empty", "half"])
async def test_without_a_copy_nothing_is_written_and_it_is_told_once(
    redis: Redis,
    copy: Snapshot,
    reseeder: Callable,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
) -> None:
    path = tmp_path / FILE_NAME
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    rebuild = Rebuilds()
    waiting = reseeder(rebuild)
    for _ in range(3):
        with pytest.raises(SnapshotError, match=r"snapshot\.json") as caught:
            await waiting.reseed()
        assert caught.value.trouble == "empty"
    assert caplog.text.count("cannot be written back") == 1
    assert (await redis.keys("*"), rebuild.num_begun) == ([], 0)
    write_snapshot(path, copy)
    await waiting.reseed()
    assert rebuild.num_done == 1


async def test_a_copy_of_another_secret_is_not_written(
    redis: Redis, copy: Snapshot, reseeder: Callable
) -> None:
    with pytest.raises(SnapshotError, match="another secret"):
        await reseeder(Rebuilds(), secret=b"another").reseed()
    assert await redis.keys("*") == []


async def test_a_copy_of_thousands_of_tenants_comes_back_in_one_step(redis: Redis, patient: None) -> None:
    record = RedisTenantStore(redis)
    many = range(3_000)
    contents = Snapshot(
        mark="mark",
        taken_at=1.0,
        change_count=1,
        tiers=BUILT_IN,
        tenants=tuple(a_tenant(f"t{n}") for n in many),
        keys=tuple(a_key(n, tenant_id=f"t{n}") for n in many),
    )
    assert await make_whole(record, contents, Rebuilds()) is contents
    assert by_id(await record.snapshot(1.0)).keys == contents.keys
    assert len(await record.list_tenants("t5", 7)) == 7
