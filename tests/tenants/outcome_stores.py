"""Both stores of outcomes behind one door, with time that is moved by hand."""

from __future__ import annotations

from typing import Protocol

from redis.asyncio import Redis

from tenants.outcomes import redis_outcomes
from tenants.outcomes.memory_outcomes import MemoryOutcomes
from tenants.outcomes.outcome import Mark, OutcomeStore
from tenants.outcomes.redis_outcomes import RedisOutcomes
from tests.builders_tenants import FakeClock


class Store(Protocol):
    outcomes: OutcomeStore

    async def pass_time(self, seconds: float) -> None: ...


class MemoryStore:
    def __init__(self) -> None:
        self._clock = FakeClock()
        self.outcomes: OutcomeStore = MemoryOutcomes(self._clock)

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)


class RedisStore:
    """A Redis cannot be told the time, so all that it remembers is made older."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.outcomes: OutcomeStore = RedisOutcomes(redis)

    async def pass_time(self, seconds: float) -> None:
        passed_ms = round(seconds * 1000)
        for key in await self._redis.keys():
            if key.endswith(b":outcomes"):
                await self._make_counts_older(key, passed_ms)
            elif await self._redis.hexists(key, "since"):
                await self._redis.hincrby(key, "since", -passed_ms)
            await self._redis.pexpire(key, await self._redis.pttl(key) - passed_ms)  # not above 0: deleted

    async def _make_counts_older(self, key: bytes, passed_ms: int) -> None:
        """By whole parts: what is younger than one counts as from the same."""
        parts = passed_ms * 24 // round(redis_outcomes.KEEP_S * 1000)
        counts = await self._redis.hgetall(key)
        older = {str(int(part) - parts).encode(): count for part, count in counts.items()}
        await self._redis.hset(key, mapping=older)
        if gone := counts.keys() - older.keys():
            await self._redis.hdel(key, *gone)


def a_mark(key: str = "k", body: str = "b", tenant_id: str = "acme") -> Mark:
    return Mark(tenant_id, f"hash of {key}", f"hash of {body}")
