"""Whether a Redis can hold the record: asked once at start, answered in one line."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from cluster.redis_server import RedisServerError

MIN_VERSION = (6, 2)
_TIMEOUT_S = 2.0


class RedisFacts(NamedTuple):
    version: str
    run_id: str
    """Tells this server from others, until it restarts."""
    warnings: tuple[str, ...]
    """What works, and may lose data."""


def check_redis(url: str) -> RedisFacts:
    """Version, scripting, role and durability of the Redis at `url`.

    Raises `RedisServerError`: one line, without the URL (it may hold a password).
    """
    try:
        client = Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
    except ValueError:
        raise RedisServerError("--redis-url must begin with redis://, rediss:// or unix://") from None
    with client:
        return judge_redis(_ask(client))


def _ask(client: Redis) -> dict[str, Any]:
    """The server's INFO, once it has run a script."""
    try:
        info = client.info()
        client.eval("return 1", 0)
    except AuthenticationError:
        raise RedisServerError("Redis refuses the user or password of --redis-url") from None
    except NoPermissionError:
        raise RedisServerError("Redis does not let this user run INFO and EVAL: allow both") from None
    except ResponseError as error:
        raise RedisServerError(f"Redis cannot run our scripts: {error}") from None
    except (RedisError, OSError) as error:
        raise RedisServerError(f"Redis does not answer at --redis-url ({type(error).__name__})") from None
    assert isinstance(info, dict)
    return info


def judge_redis(info: dict[str, Any]) -> RedisFacts:
    """The verdict on a server's INFO. Raises `RedisServerError`."""
    version = str(info.get("redis_version", "unknown"))
    if _parse(version) < MIN_VERSION:
        raise RedisServerError(
            f"Redis is version {version}; {'.'.join(map(str, MIN_VERSION))} or later is needed"
        )
    if info.get("cluster_enabled"):
        raise RedisServerError("Redis runs in cluster mode: give one primary instead")
    if info.get("role", "master") != "master":
        raise RedisServerError("this Redis is a replica and takes no writes: give its primary")
    warnings = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        warnings.append(f"Redis may evict keys and limits (maxmemory-policy is {policy}): set noeviction")
    if not info.get("aof_enabled"):
        warnings.append(
            "Redis keeps no append-only file, a restart may lose tenants and keys: set appendonly yes"
        )
    return RedisFacts(version, str(info.get("run_id", "")), tuple(warnings))


def _parse(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (0,)
