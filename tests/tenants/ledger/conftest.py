"""The record's Redis, asked by a client that waits: this machine may be busy with other tests."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, protocol=2) as client:
        await client.flushall()
        yield client
