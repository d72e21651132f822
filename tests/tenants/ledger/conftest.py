"""Both ledgers; the record's Redis, asked by a client that waits: other tests may keep this machine busy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.ledger.ledger import Ledger
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.redis_ledger import RedisLedger
from tests.tenants.ledger.builders import PATIENCE_S, Clock


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, protocol=2) as client:
        await client.flushall()
        yield client


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
def ledger(request: pytest.FixtureRequest, clock: Clock) -> Ledger:
    if request.param == "memory":
        return MemoryLedger(clock)
    return RedisLedger(request.getfixturevalue("redis"), clock, PATIENCE_S)


@pytest.fixture(scope="module")
def lone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    home = tmp_path_factory.mktemp("lone")
    server = RedisServer.start(home, home)
    yield server
    server.stop()


@pytest.fixture
async def lone(lone_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(lone_server.url, protocol=2) as client:
        await client.flushall()
        yield client
