"""Each trouble that Redis can have: the promised mode, no hung request, and exact books afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tenants.ledger.redis_calls import prefix_of
from tenants.store import Trouble
from tests.cluster.troubled_gateway import BUDGET, COST, FREE, OPEN, PAID, PURSE, TroubledGateway
from tests.redis_trouble import TroubledRedis

AT_ONCE = 40
assert AT_ONCE * COST > PURSE, "more than the purse pays for"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TroubledRedis]:
    server = TroubledRedis(tmp_path)
    yield server
    server.close()


@pytest.fixture
async def gateway(server: TroubledRedis, tmp_path: Path) -> AsyncIterator[TroubledGateway]:
    gateway = await TroubledGateway(server.url, tmp_path).open()
    yield gateway
    await gateway.close()


class Case(NamedTuple):
    trouble: Trouble
    begin: Callable[[TroubledRedis], object]
    end: Callable[[TroubledRedis], object]


CASES = {
    "refused": Case(
        "unreachable", lambda server: server.proxy.refuse(), lambda server: server.proxy.passes()
    ),
    "frozen": Case("timeout", TroubledRedis.stop_process, TroubledRedis.continue_process),
    "silent": Case("timeout", lambda server: server.proxy.freeze(), lambda server: server.proxy.passes()),
    "2 s slow": Case("timeout", lambda server: server.proxy.delay(2), lambda server: server.proxy.passes()),
    "no evalsha": Case(
        "refused", lambda server: server.forbid("evalsha"), lambda server: server.allow("evalsha")
    ),
    "no zadd": Case("refused", lambda server: server.forbid("zadd"), lambda server: server.allow("zadd")),
    "out of memory": Case("refused", TroubledRedis.fill_memory, TroubledRedis.free_memory),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_trouble_from_its_beginning_to_its_end(
    case: Case, server: TroubledRedis, gateway: TroubledGateway
) -> None:
    await gateway.earn_a_purse()
    case.begin(server)
    assert await gateway.serve(FREE) == "store_unavailable"
    assert gateway.told == [case.trouble]
    asked_before = gateway.num_round_trips
    ends = await gateway.serve_many(AT_ONCE)
    assert ends["open", "served"] == AT_ONCE
    assert ends["paid", "served"] == PURSE // COST
    assert ends["free", "store_unavailable"] == AT_ONCE
    assert ends["paid", "store_unavailable"] == AT_ONCE - PURSE // COST

    await gateway.pass_s(0.5)
    assert await gateway.serve(OPEN) == "served"
    assert gateway.told == [case.trouble]
    assert gateway.num_offline == {case.trouble: 3 * AT_ONCE + 2}
    assert gateway.num_round_trips == asked_before, "a request waited for a record that is known to be away"

    case.end(server)
    await gateway.until_well()
    assert gateway.told[:2] == [case.trouble, None]
    await gateway.settle_all()
    assert await gateway.charged() == gateway.served["paid"]
    assert await gateway.available() == BUDGET - COST * gateway.served["paid"]


async def test_of_many_that_ask_a_frozen_record_at_once_each_waits_once(
    server: TroubledRedis, gateway: TroubledGateway
) -> None:
    await gateway.earn_a_purse()
    server.stop_process()
    asked_before = gateway.num_round_trips
    ends = await gateway.serve_many(10)
    assert ends == {("free", "store_unavailable"): 10, ("open", "served"): 10, ("paid", "served"): 10}
    assert gateway.num_round_trips - asked_before <= 30
    assert gateway.told == ["timeout"]
    server.continue_process()
    await gateway.until_well()
    await gateway.settle_all()
    assert await gateway.charged() == gateway.served["paid"]
    assert await gateway.available() == BUDGET - COST * gateway.served["paid"]


async def test_what_runs_through_an_outage_is_charged_once(
    server: TroubledRedis, gateway: TroubledGateway
) -> None:
    await gateway.earn_a_purse()
    before = await gateway.admit(PAID)
    server.proxy.refuse()
    assert await gateway.serve(PAID) == "served"
    during = await gateway.admit(PAID)
    server.proxy.passes()
    await gateway.until_well()
    gateway.answer(PAID, before)
    gateway.answer(PAID, during)
    await gateway.settle_all()
    assert await gateway.charged() == gateway.served["paid"] == 6
    assert await gateway.available() == BUDGET - 6 * COST


async def test_forgotten_scripts_are_no_trouble(server: TroubledRedis, gateway: TroubledGateway) -> None:
    for _ in range(3):
        server.flush_scripts()
        assert await gateway.serve(FREE) == "served"
    assert (gateway.told, gateway.num_offline.total()) == ([], 0)


async def test_one_tenant_s_junk_is_nobody_else_s_trouble(
    server: TroubledRedis, gateway: TroubledGateway
) -> None:
    with server.admin() as admin:
        admin.set(f"{prefix_of('free')}account", "junk")
    assert await gateway.serve(FREE) == "store_unavailable"
    assert await gateway.serve(PAID) == "served"
    assert (gateway.told, gateway.num_offline.total()) == ([], 0)


async def test_a_server_that_dies_and_comes_back_empty_is_written_anew(
    server: TroubledRedis, gateway: TroubledGateway
) -> None:
    await gateway.earn_a_purse()
    server.kill()
    assert await gateway.serve(OPEN) == "served"
    assert gateway.told == ["unreachable"]
    server.restart_empty()
    await gateway.until_well()
    assert gateway.told == ["unreachable", "empty", None]
    assert await gateway.serve(FREE) == "served"
    await gateway.settle_all()
    assert await gateway.charged() == gateway.served["paid"] == 3
    assert await gateway.available() == BUDGET - 3 * COST


async def test_a_record_that_lost_its_epoch_is_not_believed(
    server: TroubledRedis, gateway: TroubledGateway
) -> None:
    with server.admin() as admin:
        admin.flushall()
    assert await gateway.serve(OPEN) == "served"
    assert await gateway.serve(FREE) == "store_unavailable"
    assert (gateway.told, gateway.num_offline) == (["empty"], {"empty": 2})


async def test_a_replica_that_lagged_takes_over(server: TroubledRedis, gateway: TroubledGateway) -> None:
    await gateway.earn_a_purse()
    await gateway.drained()
    replica = server.add_replica()
    replica.wait_until_in_step()
    replica.lag()
    for _ in range(7):
        assert await gateway.serve(PAID) == "served"
    await gateway.drained()
    assert await gateway.charged() == 10

    replica.take_over()
    assert await gateway.serve(FREE) == "store_unavailable"
    await gateway.until("refused")  # it is read-only
    assert await gateway.serve(OPEN) == "served"
    assert await gateway.charged() == 3, "the last requests are lost"

    replica.promote()
    await gateway.until_well()
    await gateway.settle_all()
    assert await gateway.charged() == gateway.served["paid"] == 10
    assert await gateway.available() == BUDGET - 10 * COST
