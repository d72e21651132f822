"""One process of `bench limiter`: asks the ledger for its part of the decisions, so many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from cluster.supervisor import die_with_parent
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.redis_ledger import RedisLedger
from tenants.redis_batch import RedisBatch
from tenants.redis_client import connect
from tenants.terms import Limits, Prices

PATIENCE_S = 60.0
"""A machine that is too slow shows in the figures."""
_WIDE = Limits(
    requests_per_min=10**8,
    input_tokens_per_min=10**8,
    output_tokens_per_min=10**8,
    burst_s=3600,
    max_concurrency=10**6,
    budget_day=10**15,
    budget_month=10**15,
)
_PRICES = Prices(input=150_000, cached_input=15_000, output=600_000)

Decide = Callable[[Ask], Awaitable[Granted | Refused]]

_barrier: Barrier | None = None
"""Of all processes; given to each at its start, for it cannot be sent later."""


class WorkerTimes(NamedTuple):
    """Times of the clock that all processes of a machine share."""

    began: float
    ended: float
    times_ms: list[float]
    wrong: int


def share_barrier(barrier: Barrier) -> None:
    global _barrier
    die_with_parent()
    _barrier = barrier


def decide_part(url: str, phase: str, num_tenants: int, at_once: int, numbers: Sequence[int]) -> WorkerTimes:
    """Begins when all processes are ready. Raises `StoreUnavailable`."""

    async def run() -> WorkerTimes:
        async with connect(url) as client:
            ledger = RedisLedger(client, timeout_s=PATIENCE_S)
            client.connection_pool.timeout = PATIENCE_S  # type: ignore[attr-defined]  # of a blocking pool
            await client.ping()
            asks = [an_ask(phase, number, num_tenants) for number in numbers]
            assert _barrier is not None
            _barrier.wait(PATIENCE_S)
            decide = coalesced(client, ledger) if phase == "coalesced" else ledger.reserve
            return await _decide_all(asks, at_once, decide)

    return asyncio.run(run())


def an_ask(phase: str, number: int, num_tenants: int) -> Ask:
    return Ask(
        request_id=f"{phase}-{number:026}",
        tenant_id=f"tenant-{number % num_tenants}",
        key_id="key_0123456789abcdef",
        model="tiny",
        gateway_id="bench",
        started_at=time.time(),
        scopes=(Scope(None, _WIDE),),
        prices=_PRICES,
        prompt_tokens=1000,
        n=1,
        max_tokens=1000,
    )


def coalesced(client: Redis, ledger: RedisLedger) -> Decide:
    """Decisions that are asked for in one turn of the loop go in one pipeline, as admission sends them."""
    batch = RedisBatch(client, PATIENCE_S)

    async def reserve(ask: Ask) -> Granted | Refused:
        def queue(pipeline: Pipeline) -> None:
            ledger.queue_reserve(pipeline, ask)
            ledger.queue_watch(pipeline, ask.tenant_id)

        reply, _ = await batch.ask(queue)
        return ledger.read_reserve(ask, reply)

    return reserve


async def _decide_all(asks: Iterable[Ask], at_once: int, decide: Decide) -> WorkerTimes:
    left, times_ms, wrong = iter(asks), [], 0

    async def decide_one_after_the_other() -> None:
        nonlocal wrong
        for ask in left:
            began = time.perf_counter()
            answer = await decide(ask)
            times_ms.append((time.perf_counter() - began) * 1000)
            wrong += not (isinstance(answer, Granted) and answer.max_tokens == ask.max_tokens)

    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(decide_one_after_the_other())
    return WorkerTimes(began, time.monotonic(), times_ms, wrong)
