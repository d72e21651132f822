"""How this program talks to Redis: bounded calls, no silent repetition, commands of 6.2 only."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tenants.breaker import MAX_CALL_S

CALL_TIMEOUT_S = MAX_CALL_S
MAX_CONNECTIONS = 32
"""Per process; a call that finds them all busy waits for one, within the time of its call."""


def connect(url: str) -> Redis:
    """A client of `url` (`redis://`, `rediss://` or `unix://`); connects at its first command.

    Callers bound each call by `bounded(CALL_TIMEOUT_S)`. Its owner closes it with `aclose()`.
    Raises ValueError for a URL of another kind.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=CALL_TIMEOUT_S,
        # None, not its default: redis-py waits by `asyncio.wait_for` then, which in Python 3.11 swallows a
        # cancellation that comes with the answer: a client that leaves just then would be served to the end.
        socket_timeout=None,
        socket_connect_timeout=CALL_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),  # a repeated script may act twice; callers decide what to repeat
        protocol=2,
        driver_info=None,  # CLIENT SETINFO is younger than Redis 6.2
    )
    return Redis.from_pool(pool)
