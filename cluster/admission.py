"""The one Redis round trip of a request: everything that is asked before it is routed.

Owns the request's pipeline; what joins it later (limits, prefix look-up) is one more command in it.
Today it reads the tenant's record, so that a disabled or deleted tenant is refused at once although
its key may still be in a gateway's short cache. Without Redis the request goes on with the tenant
as the key look-up had it; each such request is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from cluster.api.auth import store_unavailable
from cluster.api.errors import ApiError
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.store import CorruptRecord
from tenants.store_redis import TENANTS_KEY, decode_tenant
from tenants.tenant import Tenant

log = logging.getLogger("headrace.gateway")


class Admission:
    """`on_degraded` is called for every request that was let in without Redis."""

    def __init__(self, client: Redis, on_degraded: Callable[[], None]) -> None:
        self._client = client
        self._on_degraded = on_degraded

    async def admit(self, tenant: Tenant) -> Tenant:
        """The tenant as its record stands now. Raises `ApiError` 401, 403 or 503; takes nothing then."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S), self._client.pipeline(transaction=False) as pipeline:
                pipeline.hget(TENANTS_KEY, tenant.tenant_id)
                (record,) = await pipeline.execute()
        except ResponseError:  # Redis is there and holds something else than our record
            raise store_unavailable() from None
        except (RedisError, OSError, TimeoutError):
            self._on_degraded()
            return tenant
        if record is None:
            raise ApiError(401, "invalid_api_key", "The tenant of this key does not exist any more.")
        try:
            current = decode_tenant(record)
        except CorruptRecord as error:
            log.error("%s", error)
            raise store_unavailable() from None
        if current.disabled:
            raise ApiError(403, "tenant_disabled", "This tenant is disabled.")
        return current
