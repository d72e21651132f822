"""All of a gateway's part in an outage together: when the shares hold, and that nothing of it stays."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tenants.breaker import PROBE_EVERY_S
from tenants.ledger.grant import Granted
from tenants.ledger.ledger import LEASE_S, RENEW_EVERY_S
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Settlement
from tenants.ledger.state import Spend
from tenants.ledger.windows import to_us
from tenants.offline.membership import Beat, MemoryMembership
from tenants.offline.standby import Means, Standby
from tenants.store import StoreUnavailable, Trouble
from tenants.terms import Limits, Terms
from tests.builders_tenants import FakeClock
from tests.tenants.offline_rig import NOON, REFUSE, SERVE, a_settlement, an_ask

BUDGET = Limits(budget_day=10_000)


class ForgetfulLedger(MemoryLedger):
    def forget(self) -> None:
        self._tenants.clear()


class Rig:
    """A gateway's standby before a record in memory that can be taken away."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOON)
        self.trouble: Trouble | None = None
        self.ledger = ForgetfulLedger(lambda: to_us(self.clock.now))
        self.running: list[Held] = []
        self.membership = MemoryMembership(self.clock)
        self.told: list[Trouble | None] = []
        self.num_reseeds = 0
        ids = count(1)
        means = Means(
            gateway_id="g1",
            ledger=self.ledger,
            membership=self,
            settle=self.settle,
            reopen=self.reopen,
            reseed=self.reseed,
            clock=self.clock,
            wall_clock=self.clock,
            new_id=lambda: f"purse_{next(ids)}",
        )
        self.standby = Standby(means, self.told.append)

    async def beat(self, gateway_id: str) -> Beat:
        if self.trouble is not None:
            raise StoreUnavailable("away", self.trouble)
        return await self.membership.beat(gateway_id)

    async def reopened(self, gateway_id: str) -> None:
        await self.membership.reopened(gateway_id)

    async def num_missing(self, num_gateways: int) -> int:
        return await self.membership.num_missing(num_gateways)

    async def leave(self, gateway_id: str) -> None:
        await self.membership.leave(gateway_id)

    async def settle(self, settlement: Settlement) -> None:
        await self.ledger.settle([settlement])

    async def reopen(self) -> None:
        await self.ledger.reopen(self.running)

    async def reseed(self) -> None:
        self.num_reseeds += 1

    def forget(self) -> None:
        """The record comes back empty."""
        self.ledger.forget()
        self.membership.is_emptied()

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / PROBE_EVERY_S)):
            self.clock.advance(PROBE_EVERY_S)
            await self.standby.tick()
            await asyncio.sleep(0)  # what it began in the background runs

    async def serve_for(self, seconds: float, terms: Terms) -> None:
        """A request a tick that the record lets in, and that never runs."""
        for number in range(round(seconds / PROBE_EVERY_S)):
            ask = an_ask(f"{self.clock.now}_{number}", BUDGET, started_at=self.clock.now)
            answer = await self.ledger.reserve(ask)
            self.standby.saw(ask, terms, answer.standing)
            await self.ledger.settle([a_settlement(ask, "unserved")])
            await self.pass_s(PROBE_EVERY_S)


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_an_outage_from_its_beginning_to_its_end(rig: Rig) -> None:
    await rig.serve_for(2 * RENEW_EVERY_S, SERVE)
    assert rig.standby.amount_held == 100

    rig.trouble = "timeout"
    await rig.pass_s(PROBE_EVERY_S)
    assert (rig.standby.health.trouble, rig.told) == ("timeout", ["timeout"])
    ask = an_ask("offline", BUDGET, started_at=rig.clock.now)
    granted = await rig.standby.reserve(ask, SERVE)
    assert isinstance(granted, Granted)

    rig.trouble = None
    await rig.pass_s(PROBE_EVERY_S)
    assert (rig.standby.health.trouble, rig.told) == (None, ["timeout", None])
    settlement = a_settlement(ask, completion_tokens=granted.max_tokens)
    rig.standby.ended(settlement)
    await rig.settle(settlement)
    await rig.pass_s(2 * RENEW_EVERY_S)
    assert rig.standby.amount_held == 0
    (row,) = await rig.ledger.usage("acme", "2023-11-15", "2023-11-15")
    assert (row.requests, row.cost) == (1, 30)


async def test_a_failed_request_opens_the_breaker_before_the_next_beat(rig: Rig) -> None:
    rig.standby.health.failed("unreachable")
    assert rig.told == ["unreachable"]
    await rig.pass_s(PROBE_EVERY_S)
    assert rig.told == ["unreachable", None]


async def test_an_emptied_record_is_written_anew(rig: Rig) -> None:
    rig.membership.is_emptied()
    await rig.pass_s(3 * PROBE_EVERY_S)
    assert (rig.standby.health.trouble, rig.num_reseeds > 0) == ("empty", True)
    rig.membership.epoch = "second"
    await rig.pass_s(PROBE_EVERY_S)
    assert rig.told == ["empty", None]
    await rig.standby.close()


async def test_an_emptied_record_has_what_runs_and_all_purses_before_it_is_whole(rig: Rig) -> None:
    await rig.serve_for(2 * RENEW_EVERY_S, SERVE)
    rig.running.append(Held(an_ask("r1", BUDGET, started_at=rig.clock.now), 30))
    rig.forget()
    await rig.pass_s(PROBE_EVERY_S)
    assert (await rig.ledger.spends("acme", None)).day == Spend(reserved=30 + rig.standby.amount_held)
    assert (rig.standby.health.trouble, rig.standby.amount_held, rig.num_reseeds) == ("empty", 100, 1)
    rig.clock.advance(LEASE_S)
    assert [one.request_id for one in await rig.ledger.reap()] == ["r1"]  # nobody renews it here


async def test_a_purse_that_a_record_has_forgotten_is_given_back_to_it_once(rig: Rig) -> None:
    await rig.serve_for(2 * RENEW_EVERY_S, SERVE)
    rig.forget()
    await rig.pass_s(PROBE_EVERY_S)
    rig.membership.epoch = "second"
    await rig.pass_s(3 * RENEW_EVERY_S)
    assert rig.standby.amount_held == 0
    assert (await rig.ledger.spends("acme", None)).day == Spend()


async def test_no_purse_is_taken_for_a_tier_that_is_not_served_without_the_record(rig: Rig) -> None:
    await rig.serve_for(4 * RENEW_EVERY_S, REFUSE)
    assert rig.standby.amount_held == 0


async def test_purses_are_neither_taken_nor_renewed_while_the_record_is_away(rig: Rig) -> None:
    await rig.serve_for(RENEW_EVERY_S, SERVE)
    rig.trouble = "refused"
    await rig.serve_for(2 * RENEW_EVERY_S, SERVE)
    assert rig.standby.amount_held == 0


async def test_the_shares_are_by_the_gateways_that_live(rig: Rig) -> None:
    await rig.membership.beat("g2")
    await rig.pass_s(PROBE_EVERY_S)
    assert rig.standby.num_gateways == 2


async def test_an_orderly_end_gives_all_back_and_leaves_the_fleet(rig: Rig) -> None:
    await rig.serve_for(2 * RENEW_EVERY_S, SERVE)
    await rig.standby.close()
    assert rig.standby.amount_held == 0
    assert await rig.membership.beat("g2") == Beat(1, "first")
    assert await rig.ledger.reap() == []
