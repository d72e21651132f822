"""One real Redis for all tests of the record; each test finds it empty."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.redis_client import connect
from tenants.store_redis import RedisTenantStore
from tenants.tier import BUILT_IN

PATIENCE_S = 10.0
"""On a busy machine an answer may take longer than a gateway would wait for it; that is no matter here."""


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("redis")
    server = RedisServer.start(home, home)
    yield server.url
    server.stop()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    client.connection_pool.timeout = PATIENCE_S
    client.connection_pool.connection_kwargs["socket_connect_timeout"] = PATIENCE_S
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of tenants wait for a busy machine."""
    monkeypatch.setattr("tenants.store_redis.CALL_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
async def record(redis: Redis, patient: None) -> RedisTenantStore:
    """A store over a Redis record that holds the built-in tiers and nothing else."""
    store = RedisTenantStore(redis)
    await store.seed("mark", BUILT_IN, [])
    return store
