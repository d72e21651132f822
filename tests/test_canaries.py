"""The look for secrets finds them in every form, and cannot pass by seeing nothing."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.canaries import all_of_redis, found, found_in_files
from tests.tenants.conftest import redis, redis_url

__all__ = ["redis", "redis_url"]

SECRET = "canary-of-the-test"


@pytest.mark.parametrize(
    "text",
    [
        SECRET.encode(),
        repr(list(SECRET.encode())).encode(),
        SECRET.encode().hex().encode(),
        *(b64encode(b"x" * pad + SECRET.encode() + b"yz") for pad in range(4)),
    ],
)
def test_a_secret_is_found_in_every_form(text: bytes) -> None:
    assert found([SECRET, "another-canary"], b"before " + text + b" behind") == [SECRET]


def test_nothing_is_found_where_nothing_is() -> None:
    assert found([SECRET], b"canary-of-the-tes") == []


def test_a_secret_is_found_in_a_file_that_is_not_known_to_hold_it(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for path in (tmp_path / "key", tmp_path / "logs" / "log"):
        path.write_text(f"… {SECRET} …")
    assert found_in_files([SECRET], tmp_path, [tmp_path / "key"]) == [f"{SECRET} in {tmp_path}/logs/log"]


async def test_a_secret_is_found_in_every_type_of_redis(redis: Redis) -> None:
    await redis.set("string", "s-string")
    await redis.hset("hash", "s-field", "s-value")  # type: ignore[misc]
    await redis.rpush("list", "s-item")  # type: ignore[misc]
    await redis.sadd("set", "s-member")  # type: ignore[misc]
    await redis.zadd("zset", {"s-scored": 1})
    await redis.xadd("stream", {"s-name": "s-said"})
    await redis.set("s-key", 1)
    secrets = [
        "s-string",
        "s-field",
        "s-value",
        "s-item",
        "s-member",
        "s-scored",
        "s-name",
        "s-said",
        "s-key",
    ]
    assert found(secrets, await all_of_redis(redis)) == secrets
