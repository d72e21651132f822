"""An empty record is whole only when every gateway has told it what runs, or is as good as dead."""

from __future__ import annotations

import pytest

from tenants.ledger.ledger import LEASE_S
from tenants.offline.membership import MemoryMembership
from tenants.offline.reopening import all_reopened
from tests.builders_spool import Pauses
from tests.builders_tenants import FakeClock


class Rig:
    """A fleet of two that lost its record; pauses take their time, and a beat each."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.membership = MemoryMembership(self.clock)
        self.pauses = Pauses()

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.membership.beat("g1")
        await self.membership.reopened("g1")
        await self.pauses(seconds)


async def test_nobody_waits_when_all_have_told() -> None:
    rig = Rig()
    for name in ("g1", "g2"):
        await rig.membership.beat(name)
        await rig.membership.reopened(name)
    await all_reopened(rig.membership, 2, rig.sleep)
    await all_reopened(MemoryMembership(rig.clock), 0, rig.sleep)
    assert rig.pauses.seconds == []


async def test_one_that_is_late_is_waited_for_though_it_was_not_heard_yet() -> None:
    rig = Rig()

    async def sleep(seconds: float) -> None:
        await rig.sleep(seconds)
        if len(rig.pauses.seconds) == 7:
            await rig.membership.reopened("g2")
        if len(rig.pauses.seconds) == 9:
            await rig.membership.beat("g2")

    await all_reopened(rig.membership, 2, sleep)
    assert len(rig.pauses.seconds) == 9


async def test_one_that_joined_since_is_waited_for_too() -> None:
    rig = Rig()
    await rig.membership.beat("g2")

    async def sleep(seconds: float) -> None:
        await rig.sleep(seconds)
        await rig.membership.beat("g2")
        if len(rig.pauses.seconds) == 5:
            await rig.membership.reopened("g2")

    await all_reopened(rig.membership, 1, sleep)
    assert len(rig.pauses.seconds) == 5


async def test_one_that_is_dead_holds_the_record_up_no_longer_than_its_leases_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    await all_reopened(rig.membership, 2, rig.sleep)
    assert sum(rig.pauses.seconds) == pytest.approx(LEASE_S)
    assert "1 gateways did not tell" in caplog.text
