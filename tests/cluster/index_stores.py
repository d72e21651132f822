"""Both stores of the prefix index behind one door, with time that is moved by hand; and blocks for them."""

from __future__ import annotations

from typing import Protocol

from redis.asyncio import Redis

from cluster.index.memory_index import MemoryPrefixIndex
from cluster.index.prefix_index import INDEX_EVERY, Changes, PrefixIndex
from cluster.index.redis_index import INCARNATIONS_KEY, RedisPrefixIndex
from tests.builders_tenants import FakeClock

ROOT = b"root of one tenant"
NOBODY = frozenset[int]()


class Store(Protocol):
    index: PrefixIndex

    async def pass_time(self, seconds: float) -> None: ...


class MemoryStore:
    def __init__(self) -> None:
        self._clock = FakeClock()
        self.index = MemoryPrefixIndex(self._clock)

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)


class RedisStore:
    """A Redis cannot be told the time, so all that it remembers is made older."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.index = RedisPrefixIndex(redis)

    async def pass_time(self, seconds: float) -> None:
        for key in await self._redis.keys():
            left_ms = await self._redis.pttl(key) - round(seconds * 1000)
            await self._redis.pexpire(key, left_ms)  # not above zero: it is deleted
        for member in await self._redis.zrange(INCARNATIONS_KEY, 0, -1):
            await self._redis.zincrby(INCARNATIONS_KEY, -seconds, member)


def a_block(number: int) -> bytes:
    return number.to_bytes(16, "big")


def a_chain(num_indexed: int, first: int = 0) -> tuple[bytes, ...]:
    """Hashes of all blocks of a chain of `num_indexed` indexed ones."""
    return tuple(a_block(first + number) for number in range(num_indexed * INDEX_EVERY))


def stored(*blocks: bytes, root: bytes = ROOT) -> list[Changes]:
    return [Changes(root, stored=blocks)]


def evicted(*blocks: bytes, root: bytes = ROOT) -> list[Changes]:
    return [Changes(root, evicted=blocks)]
