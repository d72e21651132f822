"""One real Redis for all tests of the record; each test finds it empty."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.redis_client import connect


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("redis")
    server = RedisServer.start(home, home)
    yield server.url
    server.stop()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    await client.flushall()
    yield client
    await client.aclose()
