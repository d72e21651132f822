"""A Redis of a bench's own: empty, in a folder that goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.redis_client import connect

T = TypeVar("T")


def on_own_redis(run: Callable[[Redis, str], Awaitable[T]]) -> T:
    """What `run` returns, given a client and the URL. Raises `RedisServerError` if there is no server."""

    async def connected(url: str) -> T:
        async with connect(url) as client:
            return await run(client, url)

    with TemporaryDirectory(prefix="headrace-") as home:
        server = RedisServer.start(Path(home), Path(home))
        try:
            return asyncio.run(connected(server.url))
        finally:
            server.stop()
