"""Connections that ask again and again, and what came of it a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtest.gateway_bench.answers import BenchRequest, BrokenAnswer, CheckedAnswer, check
from loadtest.gateway_bench.connection import Connection, ConnectionBroken
from loadtest.gateway_bench.received import Received

LOAD_TIMEOUT_S = 180.0
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load, all of its answers whole."""

    answers: Sequence[CheckedAnswer]
    elapsed_s: float
    client_cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.elapsed_s

    @property
    def events_per_s(self) -> float:
        return sum(answer.num_events for answer in self.answers) / self.elapsed_s

    @property
    def requests_per_s(self) -> float:
        return len(self.answers) / self.elapsed_s

    @property
    def client_cpu_share(self) -> float:
        """Of one core."""
        return self.client_cpu_s / self.elapsed_s

    @property
    def ttfts_s(self) -> list[float]:
        return [answer.ttft_s for answer in self.answers]

    @property
    def gaps_s(self) -> list[float]:
        return [gap for answer in self.answers for gap in answer.gaps_s]


def run_load(port: int, ask: BenchRequest, *, streams: int, answers_each: int) -> LoadResult:
    """`streams` connections to the loopback `port`, each with one request at a time, warmed up.

    Raises `BrokenAnswer` if one of them, or the connection, is not as it should be.
    """
    try:
        return asyncio.run(asyncio.wait_for(_run_load(port, ask, streams, answers_each), LOAD_TIMEOUT_S))
    except ConnectionBroken as error:
        raise BrokenAnswer(f"a connection failed: {error}") from None
    except TimeoutError:
        raise BrokenAnswer(f"answers had not ended after {LOAD_TIMEOUT_S:.0f} s") from None


async def _run_load(port: int, ask: BenchRequest, streams: int, answers_each: int) -> LoadResult:
    request = ask.to_bytes()
    warm_up = BenchRequest(
        ask.key, ask.model, min(ask.max_tokens, _WARM_UP_TOKENS), ask.is_streamed
    ).to_bytes()
    async with _connections(port, streams) as connections:
        await asyncio.gather(*(connection.exchange(warm_up) for connection in connections))
        begun, cpu_begun = time.perf_counter(), time.process_time()
        rows = await asyncio.gather(*(_ask_each(one, request, answers_each) for one in connections))
        elapsed_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    return LoadResult([check(ask, one) for row in rows for one in row], elapsed_s, cpu_s)


async def _ask_each(connection: Connection, request: bytes, count: int) -> list[Received]:
    return [await connection.exchange(request) for _ in range(count)]


@asynccontextmanager
async def _connections(port: int, count: int) -> AsyncIterator[list[Connection]]:
    connections = [Connection(port, time.perf_counter) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            await connection.close()
