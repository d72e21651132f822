"""Redis comes back empty while requests run in two gateways: no money is granted twice, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from cluster.api.errors import ApiError
from cluster.reservation import Reservation
from tenants.breaker import PROBE_EVERY_S
from tenants.ledger.state import Spend
from tenants.store import Account
from tenants.terms import Terms
from tests.builders_tenants import FakeClock, a_key, a_tenant
from tests.cluster.troubled_gateway import A_TOKEN, COST, HANGS_AFTER_S, TroubledGateway
from tests.redis_trouble import TroubledRedis
from tests.tenants.offline_rig import NOON

PAYS_FOR = 20
"""Requests."""
BUDGET = PAYS_FOR * COST
ACCOUNT = Account(
    a_key(4, tenant_id="small"),
    a_tenant("small"),
    Terms(offline="serve", budget_day=BUDGET, input_price=A_TOKEN, output_price=A_TOKEN),
)


class Two:
    """Two gateways of one state directory, on one clock, and what runs in each of them."""

    def __init__(self, server: TroubledRedis, state_dir: Path) -> None:
        self.clock = FakeClock(NOON)
        self.gateways = [TroubledGateway(server.url, state_dir, name, self.clock) for name in ("g1", "g2")]
        self.running: list[list[Reservation]] = [[], []]
        self.num_answered = 0
        self._server = server

    async def admit(self, gateway: int, number: int = 1) -> int:
        """So many at once; how many were let in."""
        asked = [self.gateways[gateway].admit(ACCOUNT) for _ in range(number)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        granted = [one for one in answers if isinstance(one, Reservation)]
        assert all(isinstance(one, Reservation | ApiError) for one in answers)
        self.running[gateway] += granted
        return len(granted)

    def answer(self, gateway: int, number: int = 1) -> None:
        for _ in range(min(number, len(self.running[gateway]))):
            self.gateways[gateway].answer(ACCOUNT, self.running[gateway].pop(0))
            self.num_answered += 1

    async def lose_all(self) -> None:
        with self._server.admin() as admin:
            admin.flushall()

    async def tick(self, *gateways: int) -> None:
        self.clock.advance(PROBE_EVERY_S)
        for gateway in gateways or (0, 1):
            await self.gateways[gateway].tick()
        await asyncio.sleep(0.01)  # what writes an empty record anew needs real time

    async def whole(self, *gateways: int) -> None:
        """Ticks until those know that the record is whole again."""
        async with asyncio.timeout(HANGS_AFTER_S):
            while True:
                await self.tick(*gateways)
                if all(self.gateways[one].standby.health.trouble is None for one in gateways or (0, 1)):
                    return

    async def spend(self) -> Spend:
        for gateway in self.gateways:
            await gateway.drained()
        return (await self.gateways[0].ledger.spends("small", None)).day

    @property
    def booked(self) -> Spend:
        return Spend(spent=COST * self.num_answered, reserved=COST * sum(map(len, self.running)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TroubledRedis]:
    server = TroubledRedis(tmp_path)
    yield server
    server.close()


@pytest.fixture
async def two(server: TroubledRedis, tmp_path: Path) -> AsyncIterator[Two]:
    two = Two(server, tmp_path)
    for gateway in two.gateways:
        await gateway.open()
    for _ in range(2):  # each hears of the other
        await two.tick()
    yield two
    for gateway in two.gateways:
        await gateway.close()


async def test_a_burst_behind_a_loss_gets_what_was_left_and_no_more(two: Two) -> None:
    for gateway in (0, 1):
        assert await two.admit(gateway, 8) == 8
    two.answer(0, 3)
    await two.lose_all()
    two.answer(1, 2)  # and nobody has noticed yet
    await two.whole()
    assert await two.spend() == two.booked
    granted = await asyncio.gather(*(two.admit(gateway, PAYS_FOR) for gateway in (0, 1)))
    assert sum(granted) == PAYS_FOR - 16
    for gateway in (0, 1):
        two.answer(gateway, PAYS_FOR)
    assert await two.spend() == Spend(spent=BUDGET)


async def test_the_record_is_not_whole_before_the_other_gateway_has_told_what_runs(two: Two) -> None:
    assert await two.admit(1, PAYS_FOR) == PAYS_FOR
    await two.lose_all()
    for _ in range(4):
        await two.tick(0)
        assert await two.admit(0) == 0
        assert two.gateways[0].standby.health.trouble == "empty"
    await two.whole()
    assert await two.admit(0, PAYS_FOR) == 0
    assert await two.spend() == two.booked


async def test_one_that_is_not_heard_of_is_given_up_and_tells_before_it_decides_again(two: Two) -> None:
    assert await two.admit(0, 5) == await two.admit(1, 5) == 5
    await two.lose_all()
    await two.whole(0)
    assert await two.spend() == Spend(reserved=5 * COST)
    await two.tick()
    assert await two.spend() == two.booked == Spend(reserved=10 * COST)


async def test_what_was_let_in_by_an_answer_of_the_life_before_is_told_too(two: Two) -> None:
    """Heard after the gateway told what runs: it tells again while the record is empty."""
    await two.lose_all()
    await two.tick(0)
    assert two.gateways[0].standby.health.trouble == "empty"
    late = two.gateways[0].let_in(ACCOUNT)
    two.running[0].append(late)
    await two.tick(0)
    await two.whole()
    assert await two.spend() == two.booked == Spend(reserved=COST)


@pytest.mark.parametrize("seed", range(8))
async def test_whenever_it_is_lost_no_money_is_granted_twice(two: Two, seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        gateway = random.randrange(2)
        match random.choice(["admit", "admit", "answer", "answer", "tick", "lose", "whole"]):
            case "admit":
                await two.admit(gateway, random.randrange(1, 5))
            case "answer":
                two.answer(gateway, random.randrange(1, 3))
            case "tick":
                await two.tick(gateway)
            case "lose" if random.random() < 0.5:
                await two.lose_all()
            case "whole":
                await two.whole()
                assert await two.spend() == two.booked
        assert two.booked.available(BUDGET) >= 0
    await two.whole()
    assert await two.spend() == two.booked
