"""One real Redis for all tests of the record; each test finds it empty."""

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.redis_client import connect
from tenants.store_redis import RedisTenantStore
from tests.builders_tenants import seed

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
    await seed(store)
    return store


@pytest.fixture
def mute_url(tmp_path: Path) -> Iterator[str]:
    """Where connections are taken and nothing is ever said."""
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        yield f"unix://{path}"
