"""What a decision of the ledger costs: processes that reserve for many tenants, on a Redis of their own.

Every tenant has every limit there is, each so wide that nothing is refused: a grant is the dear kind of
answer. Decisions come first in one pipeline each; then as a gateway makes them, those of one loop tick in one
pipeline. What was granted is settled behind each phase, and that is timed apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from redis.asyncio import Redis

from loadtest.limiter_worker import PATIENCE_S, WorkerTimes, an_ask, decide_part, share_barrier
from loadtest.percentiles import percentiles
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.settlement import Settlement

MIN_RATE_PER_S = 3000
MIN_COALESCED_PER_S = 6000
MAX_SERVER_MEAN_MS = 0.1


@dataclass(frozen=True)
class LimiterLoad:
    num_decisions: int = 20_000
    """Of each phase, by all processes together."""
    num_tenants: int = 100
    num_processes: int = 2
    concurrency: int = 16
    """Decisions that each process waits for at once; of coalesced ones eight times as many."""

    @property
    def parts(self) -> list[range]:
        """Numbers of the decisions of each process."""
        return [range(first, self.num_decisions, self.num_processes) for first in range(self.num_processes)]


class LimiterBench:
    """`client` is of an empty Redis of its own at `url`, whose counters it resets."""

    def __init__(self, client: Redis, url: str, load: LimiterLoad, tell: Callable[[str], None]) -> None:
        self._client = client
        self._ledger = RedisLedger(client, timeout_s=PATIENCE_S)
        self._url = url
        self._load = load
        self._tell = tell

    async def run(self) -> dict[str, Any]:
        """The figures. Raises `StoreUnavailable`."""
        await self._ledger.load()
        await self._settle_what_it_reserves("first", range(self._load.num_tenants))
        tenants_bytes, stones_bytes = await self._bytes_of("*"), await self._bytes_of("*:settled:*")
        context = get_context("spawn")
        barrier = context.Barrier(self._load.num_processes)
        with ProcessPoolExecutor(
            self._load.num_processes, context, initializer=share_barrier, initargs=(barrier,)
        ) as pool:
            await self._decide(pool, "warm-up")
            await self._client.config_resetstat()
            single = await self._decide(pool, "single")
            server = await self._server_figures()
            settles_per_s = await self._settle("single", range(self._load.num_decisions))
            coalesced = await self._decide(pool, "coalesced")
            await self._settle("coalesced", range(self._load.num_decisions))
        stones_bytes = await self._bytes_of("*:settled:*") - stones_bytes
        return self._figures(single, coalesced, server) | {
            "settles_per_s": round(settles_per_s),
            "bytes_per_tenant": round(tenants_bytes / self._load.num_tenants),
            "bytes_per_settled_request": round(stones_bytes / (2 * self._load.num_decisions), 1),
        }

    def _figures(
        self, single: list[WorkerTimes], coalesced: list[WorkerTimes], server: dict[str, float]
    ) -> dict[str, Any]:
        rate, coalesced_rate = _rate(single), _rate(coalesced)
        wrong = sum(part.wrong for part in single + coalesced)
        bounds = {
            f"rate_per_s {rate:.0f}, at least {MIN_RATE_PER_S}": rate >= MIN_RATE_PER_S,
            f"coalesced_per_s {coalesced_rate:.0f}, at least {MIN_COALESCED_PER_S}": (
                coalesced_rate >= MIN_COALESCED_PER_S
            ),
            f"server_mean_ms {server['server_mean_ms']}, at most {MAX_SERVER_MEAN_MS}": (
                server["server_mean_ms"] <= MAX_SERVER_MEAN_MS
            ),
            f"wrong {wrong}, at most 0": not wrong,
        }
        missed = [bound for bound, is_held in bounds.items() if not is_held]
        return {
            "held": not missed,
            "missed": missed,
            "processes": self._load.num_processes,
            "tenants": self._load.num_tenants,
            "decisions": self._load.num_decisions,
            "wrong": wrong,
            "rate_per_s": round(rate),
            **_percentiles("", single),
            **server,
            "coalesced_per_s": round(coalesced_rate),
            **_percentiles("coalesced_", coalesced),
        }

    async def _decide(self, pool: ProcessPoolExecutor, phase: str) -> list[WorkerTimes]:
        self._tell(f"deciding: {phase}")
        at_once = self._load.concurrency * (8 if phase == "coalesced" else 1)
        loop = asyncio.get_running_loop()
        calls = (self._url, phase, self._load.num_tenants, at_once)
        parts = [loop.run_in_executor(pool, decide_part, *calls, numbers) for numbers in self._load.parts]
        return await asyncio.gather(*parts)

    async def _settle_what_it_reserves(self, phase: str, numbers: range) -> None:
        for number in numbers:
            await self._ledger.reserve(an_ask(phase, number, self._load.num_tenants))
        await self._settle(phase, numbers)

    async def _settle(self, phase: str, numbers: range) -> float:
        """How many a second."""
        asks = [an_ask(phase, number, self._load.num_tenants) for number in numbers]
        settlements = [
            Settlement.of(
                ask,
                ended_at=ask.started_at,
                outcome="finished",
                prompt_tokens=ask.prompt_tokens,
                completion_tokens=200,
            )
            for ask in asks
        ]
        began = time.perf_counter()
        await self._ledger.settle(settlements)
        return len(settlements) / (time.perf_counter() - began)

    async def _server_figures(self) -> dict[str, float]:
        """Of the decisions since the counters were reset: both scripts of each, and how often it was read."""
        commands, stats = await self._client.info("commandstats"), await self._client.info("stats")
        decisions = self._load.num_decisions
        return {
            "server_mean_ms": round(commands["cmdstat_evalsha"]["usec"] / decisions / 1000, 4),
            "round_trips": round(stats["total_reads_processed"] / decisions, 2),
        }

    async def _bytes_of(self, pattern: str) -> int:
        """What the keys take, their names too."""
        keys = [key async for key in self._client.scan_iter(pattern, count=1000)]
        async with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.memory_usage(key, samples=0)
            return sum(await pipeline.execute())


def _rate(parts: list[WorkerTimes]) -> float:
    """Decisions a second, from the first begun to the last answered."""
    decisions = sum(len(part.times_ms) for part in parts)
    return decisions / (max(part.ended for part in parts) - min(part.began for part in parts))


def _percentiles(prefix: str, parts: list[WorkerTimes]) -> dict[str, float]:
    p50, p99 = percentiles([took for part in parts for took in part.times_ms], [50, 99])
    assert p50 is not None
    assert p99 is not None
    return {f"{prefix}p50_ms": round(p50, 3), f"{prefix}p99_ms": round(p99, 3)}
