"""The heartbeats of gateways in Redis, by Redis' time, in one script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenants.bounded import bounded
from tenants.offline.membership import GATEWAY_TTL_S, REOPENED_TTL_S, Beat
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_script import Script, ScriptCall, Scripts
from tenants.redis_trouble import unavailable
from tenants.reseed import EPOCH_KEY
from tenants.store import CorruptRecord

_PLACE = "headrace:{directory}:"
GATEWAYS_KEY = f"{_PLACE}gateways"


def _reopened_key(gateway_id: str) -> str:
    return f"{_PLACE}reopened:{gateway_id}"


class RedisMembership:
    """A `Membership` over a client that someone else owns and closes; the gateways are Redis'.

    A call ends within `CALL_TIMEOUT_S`. `clock`, in seconds, stands for Redis' own.
    """

    def __init__(self, client: Redis, clock: Callable[[], float] | None = None) -> None:
        self._client = client
        self._clock = clock
        self._beat = Script("tenants.offline", "beat")
        self._scripts = Scripts(client, [self._beat], CALL_TIMEOUT_S)

    async def beat(self, gateway_id: str) -> Beat:
        now = "" if self._clock is None else round(self._clock() * 1000)
        args = (gateway_id, round(GATEWAY_TTL_S * 1000), now)
        try:
            async with bounded(CALL_TIMEOUT_S):
                (reply,) = await self._scripts.run([ScriptCall(self._beat, (GATEWAYS_KEY, EPOCH_KEY), args)])
            if isinstance(reply, RedisError):
                raise reply
            num_gateways, epoch = msgspec.convert(reply, tuple[int, bytes])
        except (RedisError, OSError) as error:
            raise unavailable(error, _PLACE) from error
        except msgspec.ValidationError:
            raise CorruptRecord(f"an answer from {_PLACE} is not ours", "refused") from None
        return Beat(num_gateways, epoch.decode(errors="replace") or None)

    async def reopened(self, gateway_id: str) -> None:
        try:
            async with bounded(CALL_TIMEOUT_S):
                await self._client.set(_reopened_key(gateway_id), "", px=round(REOPENED_TTL_S * 1000))
        except (RedisError, OSError) as error:
            raise unavailable(error, _PLACE) from error

    async def num_missing(self, num_gateways: int) -> int:
        try:
            async with bounded(CALL_TIMEOUT_S):
                names: list[Any] = await self._client.zrange(GATEWAYS_KEY, 0, -1)
                living = [name.decode(errors="replace") for name in names]
                num_told = await self._client.exists(*map(_reopened_key, living)) if living else 0
        except (RedisError, OSError) as error:
            raise unavailable(error, _PLACE) from error
        return max(len(living), num_gateways) - int(num_told)

    async def leave(self, gateway_id: str) -> None:
        try:
            async with bounded(CALL_TIMEOUT_S):
                await self._client.zrem(GATEWAYS_KEY, gateway_id)
        except (RedisError, OSError) as error:
            raise unavailable(error, _PLACE) from error
