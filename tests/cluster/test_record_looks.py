"""A look at the record that fails is counted, each kind is told once, and the next look is tried."""

from __future__ import annotations

import pytest

from cluster.record_looks import RecordLooks
from tenants.breaker import Breaker
from tenants.record_health import RecordHealth
from tenants.store import CorruptRecord, StoreUnavailable
from tests.builders_tenants import FakeClock


class Seen:
    """Something to look at; it fails with what a test wants."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.num_looks = 0

    async def __call__(self) -> None:
        self.num_looks += 1
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def health() -> RecordHealth:
    return RecordHealth(Breaker(), FakeClock())


@pytest.fixture
def looks(health: RecordHealth) -> RecordLooks:
    return RecordLooks(health)


async def test_each_failure_counts_and_each_kind_is_told_once(
    looks: RecordLooks, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    for fault in (
        StoreUnavailable("too slow", "timeout"),
        StoreUnavailable("cut off", "unreachable"),
        CorruptRecord("a value of keys is no ApiKey", "refused"),
        OSError(28, "no space left"),
    ):
        seen.fault = fault
        for _ in range(3):
            await looks.look(seen)
        assert caplog.text.count(str(fault)) == 1
    assert (looks.num_failed, seen.num_looks, len(caplog.records)) == (12, 12, 4)


async def test_one_that_succeeds_is_not_counted(looks: RecordLooks) -> None:
    await looks.look(Seen())
    assert looks.num_failed == 0


async def test_a_record_in_trouble_is_not_looked_at(health: RecordHealth, looks: RecordLooks) -> None:
    seen = Seen()
    health.failed("timeout")
    await looks.look(seen)
    assert (seen.num_looks, looks.num_failed) == (0, 0)


async def test_what_nobody_foresaw_is_the_caller_s(looks: RecordLooks) -> None:
    seen = Seen()
    seen.fault = KeyError("a fault")
    with pytest.raises(KeyError):
        await looks.look(seen)
