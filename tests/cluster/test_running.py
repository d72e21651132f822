"""Requests of a frozen or deleted tenant end; nobody else's do, whatever the record is going through."""

from __future__ import annotations

import msgspec
import pytest

from cluster.gateway_record import WATCH_EVERY_S
from cluster.running import NUM_LOOKS, Running, RunningRequest
from tenants.store import CorruptRecord, StoreUnavailable
from tenants.tenant import Tenant
from tests.builders_tenants import a_tenant, switched_off

ACME, ZETA = a_tenant("acme"), a_tenant("zeta")


class FakeRecord:
    """A record that the test changes; each change counts, as the store's do."""

    def __init__(self, *tenants: Tenant) -> None:
        self._tenants = {tenant.tenant_id: tenant for tenant in tenants}
        self._count = len(tenants)
        self.num_reads = 0
        self.trouble: dict[str, StoreUnavailable] = {}

    def put(self, tenant: Tenant) -> None:
        self._tenants[tenant.tenant_id] = tenant
        self._count += 1

    def delete(self, tenant_id: str) -> None:
        del self._tenants[tenant_id]
        self._count += 1

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        self.num_reads += 1
        if tenant_id in self.trouble:
            raise self.trouble[tenant_id]
        return self._tenants.get(tenant_id)

    async def change_count(self) -> int:
        return self._count


async def settled(running: Running, record: FakeRecord) -> None:
    """All that the record says is known."""
    for _ in range(NUM_LOOKS):
        assert await running.check(record) == 0
    record.num_reads = 0


@pytest.fixture
def record() -> FakeRecord:
    return FakeRecord(ACME, ZETA)


@pytest.fixture
def running() -> Running:
    return Running()


async def test_freezing_ends_what_the_tenant_runs_and_nothing_else(
    running: Running, record: FakeRecord
) -> None:
    runs = [running.entered(tenant) for tenant in (ACME, ACME, ZETA)]
    await settled(running, record)
    record.put(switched_off(ACME))
    assert await running.check(record) == 2
    assert [run.is_ended for run in runs] == [True, True, False]


async def test_freezing_for_less_than_a_look_ends_what_ran_before(
    running: Running, record: FakeRecord
) -> None:
    await settled(running, record)
    before = running.entered(ACME)
    since = msgspec.structs.replace(ACME, num_freezes=1)
    record.put(since)
    after = running.entered(since)
    assert await running.check(record) == 1
    assert (before.is_ended, after.is_ended) == (True, False)


async def test_deleting_ends_what_the_tenant_runs(running: Running, record: FakeRecord) -> None:
    run = running.entered(ACME)
    await settled(running, record)
    record.delete("acme")
    assert await running.check(record) == 1
    assert run.is_ended


async def test_who_runs_it_is_told_once(running: Running, record: FakeRecord) -> None:
    run, told = running.entered(ACME), []
    run.on_ended = lambda: told.append(run.is_ended)
    await settled(running, record)
    assert told == []
    record.put(switched_off(ACME))
    for _ in range(3):
        await running.check(record)
    assert told == [True]


async def test_any_other_change_of_the_tenant_ends_nothing(running: Running, record: FakeRecord) -> None:
    run = running.entered(ACME)
    record.put(a_tenant("acme", name="New", tier="free", version=2))
    assert await running.check(record) == 0
    assert not run.is_ended


async def test_a_tenant_made_anew_under_the_same_id_does_not_keep_the_old_ones_requests(
    running: Running, record: FakeRecord
) -> None:
    old = running.entered(ACME)
    await settled(running, record)
    anew = a_tenant("acme", created_at=2.0)
    record.delete("acme")
    record.put(anew)
    new = running.entered(anew)
    assert await running.check(record) == 1
    assert (old.is_ended, new.is_ended) == (True, False)


async def test_nothing_is_read_while_the_record_does_not_change(running: Running, record: FakeRecord) -> None:
    running.entered(ACME), running.entered(ZETA)
    await settled(running, record)
    await running.check(record)
    assert record.num_reads == 0
    record.put(ZETA)
    await running.check(record)
    assert record.num_reads == 2


async def test_requests_that_enter_with_what_was_known_before_end_at_the_next_check(
    running: Running, record: FakeRecord
) -> None:
    await settled(running, record)
    record.put(switched_off(ACME))
    for _ in range(NUM_LOOKS):
        running.entered(ACME)
        assert await running.check(record) == 1
    running.entered(ACME)
    assert await running.check(record) == 0, "nobody has that old a key any more"


def test_the_looks_outlast_what_a_gateway_may_believe_of_a_key() -> None:
    """0.5 s in the cache, 0.25 s each for the key and the admission, and as much again for a body."""
    assert (NUM_LOOKS - 1) * WATCH_EVERY_S >= 1.5


async def test_the_looks_count_from_the_last_change(running: Running, record: FakeRecord) -> None:
    await settled(running, record)
    record.put(switched_off(ACME))
    for _ in range(NUM_LOOKS - 1):
        await running.check(record)
    record.put(ZETA)
    for _ in range(NUM_LOOKS):
        running.entered(ACME)
        assert await running.check(record) == 1


async def test_each_request_is_ended_once(running: Running, record: FakeRecord) -> None:
    running.entered(ACME)
    record.put(switched_off(ACME))
    assert [await running.check(record) for _ in range(3)] == [1, 0, 0]


async def test_who_has_left_is_forgotten(running: Running, record: FakeRecord) -> None:
    run = running.entered(ACME)
    assert running.num_requests == 1
    for _ in range(2):
        run.leave()
    assert running.num_requests == 0
    record.put(switched_off(ACME))
    assert await running.check(record) == 0
    assert record.num_reads == 0


async def test_one_that_leaves_while_its_tenant_is_read_is_not_ended(
    running: Running, record: FakeRecord
) -> None:
    runs: list[RunningRequest] = [running.entered(ACME), running.entered(ZETA)]

    class Leaving(FakeRecord):
        async def get_tenant(self, tenant_id: str) -> Tenant | None:
            for run in runs:
                run.leave()
            return None

    assert await running.check(Leaving(ACME)) == 0


# --- the record in trouble -------------------------------------------------------------------


async def test_a_record_that_does_not_answer_ends_nobody_and_is_asked_again(
    running: Running, record: FakeRecord
) -> None:
    run = running.entered(ACME)
    await settled(running, record)
    record.put(switched_off(ACME))
    record.trouble["acme"] = StoreUnavailable()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await running.check(record)
    assert not run.is_ended
    record.trouble.clear()
    assert await running.check(record) == 1


async def test_a_record_of_one_tenant_that_cannot_be_read_hides_no_other(
    running: Running, record: FakeRecord
) -> None:
    one, other = running.entered(ACME), running.entered(ZETA)
    record.trouble["acme"] = CorruptRecord()
    record.put(switched_off(ZETA))
    assert await running.check(record) == 1
    assert (one.is_ended, other.is_ended) == (False, True)
