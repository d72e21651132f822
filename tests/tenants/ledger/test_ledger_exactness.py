"""Many at once: exactly as many pass as may, and no money is spent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from threading import Barrier, Thread

import pytest
from redis.asyncio import Redis

from tenants.ledger.ask import Ask
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.ledger import Ledger
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.redis_ledger import RedisLedger
from tenants.terms import Limits
from tests.tenants.ledger.builders import EACH_TOKEN_ONE, PATIENCE_S, Clock, an_ask, settled

AT_ONCE, PAID_FOR = 200, 10


@pytest.mark.parametrize(
    ("limits", "passing"),
    [
        (Limits(requests_per_min=37), 37),
        (Limits(max_concurrency=41), 41),
        (Limits(input_tokens_per_min=10 * 23 + 9, budget_month=30 * 50), 23),
        (Limits(requests_per_min=50, max_concurrency=50, budget_day=30 * 13), 13),
    ],
)
def test_a_hundred_threads_fire_and_exactly_the_allowed_number_pass(
    redis_url: str, limits: Limits, passing: int
) -> None:
    barrier, answers = Barrier(100), []

    async def fire(number: int) -> None:
        async with Redis.from_url(redis_url, protocol=2) as client:
            ledger = RedisLedger(client, clock, PATIENCE_S)
            await client.ping()
            barrier.wait(timeout=60)
            answers.append(await ledger.reserve(an_ask(f"r{number}", limits, prices=EACH_TOKEN_ONE)))

    async def empty() -> None:
        async with Redis.from_url(redis_url, protocol=2) as client:
            await client.flushall()

    clock = Clock()
    asyncio.run(empty())
    threads = [Thread(target=lambda number=number: asyncio.run(fire(number))) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 100
    assert sum(isinstance(answer, Granted) for answer in answers) == passing


Fire = Callable[[Sequence[Ask]], Awaitable[list[Granted | Refused]]]


async def play_rounds(rounds: int, ledger: Ledger, fire: Fire) -> None:
    """Money for 10, and a little less than one more; 200 ask at once."""
    rng = Random(0)
    for number in range(rounds):
        limits = Limits(budget_day=PAID_FOR * 26 + 25)
        asks = [
            an_ask(f"r{number}-{at}", limits, tenant_id=f"t{number}", prices=EACH_TOKEN_ONE, max_tokens=16)
            for at in range(AT_ONCE)
        ]
        answers = await fire(asks)
        served = [ask for ask, answer in zip(asks, answers, strict=True) if isinstance(answer, Granted)]
        assert len(served) == PAID_FOR
        settlements = [settled(ask, completion_tokens=rng.randint(0, 16)) for ask in served]
        await ledger.settle(settlements)
        spent = sum(one.cost for one in settlements)
        assert spent <= limits.budget_day
        (gauge,) = (await ledger.standing(asks[0].tenant_id, "tiny", asks[0].scopes)).gauges
        assert gauge.remaining == limits.budget_day - spent
        (row,) = await ledger.usage(asks[0].tenant_id, "2025-11-30", "2025-11-30")
        assert row.cost == spent


async def test_no_round_of_200_on_money_for_10_overspends_in_memory() -> None:
    ledger = MemoryLedger(Clock())

    async def fire(asks: Sequence[Ask]) -> list[Granted | Refused]:
        return await asyncio.gather(*map(ledger.reserve, asks))

    await play_rounds(20, ledger, fire)


async def test_no_round_of_200_on_money_for_10_overspends_in_redis(redis: Redis, redis_url: str) -> None:
    """Two gateways, each with four pipelines in flight."""
    clock = Clock()
    async with Redis.from_url(redis_url, protocol=2) as other:
        gateways = [RedisLedger(redis, clock, PATIENCE_S), RedisLedger(other, clock, PATIENCE_S)]
        await gateways[0].load()

        async def fire_part(asks: Sequence[Ask], at: int) -> list[Granted | Refused]:
            gateway, client = gateways[at % 2], (redis, other)[at % 2]
            async with client.pipeline(transaction=False) as pipeline:
                for ask in asks:
                    gateway.queue_reserve(pipeline, ask)
                replies = await pipeline.execute(raise_on_error=False)
            return [gateway.read_reserve(ask, reply) for ask, reply in zip(asks, replies, strict=True)]

        async def fire(asks: Sequence[Ask]) -> list[Granted | Refused]:
            parts = await asyncio.gather(*(fire_part(asks[at::8], at) for at in range(8)))
            by_id = {
                ask.request_id: answer
                for at, part in enumerate(parts)
                for ask, answer in zip(asks[at::8], part, strict=True)
            }
            return [by_id[ask.request_id] for ask in asks]

        await play_rounds(100, gateways[0], fire)
