"""Rollouts in Redis: gateways ask for one, the launcher runs it, everybody reads how far it is.

One key holds the rollout that is not over yet, one the list of those that are. Only the launcher changes a
rollout after it was asked for. The keys carry the cluster's id: what another start left behind is nobody's.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import redis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cluster.rollout.rollout import Rollout
from tenants.store import Conflict, CorruptRecord, NotFound, StoreUnavailable

MAX_ENDED = 20
"""So many that are over are remembered."""
_TTL_S = 7 * 86_400
_TIMEOUT_S = 1.0


class Rollouts(Protocol):
    """What the operator's API needs. Every method may raise `StoreUnavailable`."""

    async def ask(self, rollout: Rollout) -> None:
        """Raises `Conflict` while another one is not over."""
        ...

    async def get(self, rollout_id: str) -> Rollout:
        """Raises `NotFound`."""
        ...

    async def list_all(self) -> list[Rollout]:
        """The latest first."""
        ...


class _Keys:
    def __init__(self, cluster_id: str) -> None:
        self.current = f"headrace:rollout:{cluster_id}"
        self.ended = f"headrace:rollouts:{cluster_id}"


class RedisRollouts:
    """The gateway's side."""

    def __init__(self, client: Redis, cluster_id: str) -> None:
        self._client = client
        self._keys = _Keys(cluster_id)

    async def ask(self, rollout: Rollout) -> None:
        try:
            taken = await self._client.set(
                self._keys.current, msgspec.json.encode(rollout), nx=True, ex=_TTL_S
            )
            if taken:
                return
            current: bytes | None = await self._client.get(self._keys.current)  # type: ignore[assignment]
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None
        name = _decode(current).rollout_id if current else "another one"
        raise Conflict(f"rollout {name} is not over yet")

    async def get(self, rollout_id: str) -> Rollout:
        for rollout in await self.list_all():
            if rollout.rollout_id == rollout_id:
                return rollout
        raise NotFound(f"there is no rollout {rollout_id}")

    async def list_all(self) -> list[Rollout]:
        try:
            async with self._client.pipeline() as pipeline:
                pipeline.get(self._keys.current)
                pipeline.lrange(self._keys.ended, 0, -1)
                current, ended = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None
        return [_decode(row) for row in (current, *ended) if row is not None]


class RolloutDesk:
    """The launcher's side. Every method may raise `redis.RedisError`."""

    def __init__(self, redis_url: str, cluster_id: str) -> None:
        self._redis = redis.Redis.from_url(
            redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._keys = _Keys(cluster_id)

    def asked(self) -> Rollout | None:
        """The rollout that is to be run, if there is one."""
        row = self._redis.get(self._keys.current)
        assert row is None or isinstance(row, bytes)
        return None if row is None else _decode(row)

    def tell(self, rollout: Rollout) -> None:
        """How far it is; one that has ended makes place for the next."""
        row = msgspec.json.encode(rollout)
        if not rollout.has_ended:
            self._redis.set(self._keys.current, row, ex=_TTL_S)
            return
        with self._redis.pipeline() as pipeline:
            pipeline.lpush(self._keys.ended, row)
            pipeline.ltrim(self._keys.ended, 0, MAX_ENDED - 1)
            pipeline.expire(self._keys.ended, _TTL_S)
            pipeline.delete(self._keys.current)
            pipeline.execute()

    def close(self) -> None:
        self._redis.close()


def _decode(row: bytes) -> Rollout:
    try:
        return msgspec.json.decode(row, type=Rollout)
    except msgspec.DecodeError:
        raise CorruptRecord("a rollout's record is not ours") from None
