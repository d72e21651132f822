"""Demand and status in Redis: gateways tell the one and read the other, the launcher the other way round.

One hash holds a row for each gateway, one key how the cluster stands. Both go by themselves when nobody
writes them any more; a gateway that has died is told apart by its row, which does not change, and is removed
by the launcher. The keys carry the cluster's id: what another start left behind is nobody's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

import msgspec
import redis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cluster.autoscaling.demand import GatewayDemand
from cluster.autoscaling.view import ClusterStatus
from tenants.bounded import bounded
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.store import StoreUnavailable

log = logging.getLogger("headrace.scaling")

STATUS_TTL_S = 10
"""The launcher tells it every second."""
_ROWS_TTL_S = 60
_TIMEOUT_S = 1.0


class StatusSource(Protocol):
    """What the operator's API needs."""

    async def status(self) -> ClusterStatus:
        """As the launcher told last. Raises `StoreUnavailable`, also if it has told nothing of late."""
        ...


class _Keys:
    def __init__(self, cluster_id: str) -> None:
        self.demand = f"headrace:demand:{cluster_id}"
        self.status = f"headrace:status:{cluster_id}"


class RedisStatus:
    """The gateways' side."""

    def __init__(self, client: Redis, cluster_id: str) -> None:
        self._client = client
        self._keys = _Keys(cluster_id)

    async def status(self) -> ClusterStatus:
        try:
            async with bounded(CALL_TIMEOUT_S):
                told: bytes | None = await self._client.get(self._keys.status)  # type: ignore[assignment]
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None
        status = _status(told)
        if status is None:
            raise StoreUnavailable("the launcher tells nothing")
        return status

    async def tell(self, gateway_id: str, demand: GatewayDemand) -> ClusterStatus | None:
        """Leaves the row and brings the status along; None: there is none. Raises `StoreUnavailable`."""
        try:
            async with bounded(CALL_TIMEOUT_S), self._client.pipeline(transaction=False) as pipeline:
                pipeline.hset(self._keys.demand, gateway_id, msgspec.json.encode(demand))
                pipeline.expire(self._keys.demand, _ROWS_TTL_S)
                pipeline.get(self._keys.status)
                *_, told = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None
        return _status(told)


class StatusBoard:
    """The launcher's side. Every method but `close` may raise `redis.RedisError`."""

    def __init__(self, redis_url: str, cluster_id: str) -> None:
        self._redis = redis.Redis.from_url(
            redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._keys = _Keys(cluster_id)

    def rows(self) -> dict[str, GatewayDemand]:
        """By gateway; what is no row of ours is left out."""
        told: dict[bytes, bytes] = self._redis.hgetall(self._keys.demand)  # type: ignore[assignment]
        rows = {gateway_id.decode("ascii", "replace"): _row(row) for gateway_id, row in told.items()}
        return {gateway_id: row for gateway_id, row in rows.items() if row is not None}

    def tell(self, status: ClusterStatus, gone: Iterable[str] = ()) -> None:
        """How the cluster stands, and whose rows are to go."""
        with self._redis.pipeline() as pipeline:
            pipeline.set(self._keys.status, msgspec.json.encode(status), ex=STATUS_TTL_S)
            for gateway_id in gone:
                pipeline.hdel(self._keys.demand, gateway_id)
            pipeline.execute()

    def close(self) -> None:
        self._redis.close()


def _row(row: bytes) -> GatewayDemand | None:
    try:
        return msgspec.json.decode(row, type=GatewayDemand)
    except msgspec.DecodeError:
        log.error("a row of demand is not ours")
        return None


def _status(told: bytes | None) -> ClusterStatus | None:
    try:
        return None if told is None else msgspec.json.decode(told, type=ClusterStatus)
    except msgspec.DecodeError:
        log.error("the cluster's status is not ours")
        return None
