"""The one Redis round trip of a request: everything that is asked before it is routed.

Owns the request's pipeline: the tenant's record, so that a disabled or deleted tenant is refused at once
although its key may still be in a gateway's short cache, and what the prefix index claims of the prompt.
Without Redis the request goes on with the tenant as the key look-up had it, and is routed by load;
each such request is counted. An index that fails alone costs its claims and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cluster.api.auth import store_unavailable
from cluster.api.errors import ApiError
from cluster.index.prefix_index import IndexUnavailable
from cluster.index.redis_index import RedisPrefixIndex
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.store import CorruptRecord
from tenants.store_redis import TENANTS_KEY, decode_tenant
from tenants.tenant import Tenant

log = logging.getLogger("headrace.gateway")


class Lookup(NamedTuple):
    """What is asked of the prefix index: one revision's chain of the prompt."""

    root: bytes
    block_hashes: Sequence[bytes]
    incarnations: Sequence[int]
    """Replicas of this revision that can take work."""


class Admitted(NamedTuple):
    tenant: Tenant
    """As its record stands now."""
    claims: Mapping[int, int]
    """Blocks of the prompt's beginning by incarnation, as the index claims."""


class Admission:
    """`on_degraded` is called for every request that was let in without Redis, `on_lookup(is_ok)` for every
    request that asked the index.
    """

    def __init__(
        self,
        client: Redis,
        index: RedisPrefixIndex,
        on_degraded: Callable[[], None],
        on_lookup: Callable[[bool], None] = lambda is_ok: None,
    ) -> None:
        self._client = client
        self._index = index
        self._on_degraded = on_degraded
        self._on_lookup = on_lookup

    async def admit(self, tenant: Tenant, lookups: Sequence[Lookup] = ()) -> Admitted:
        """Raises `ApiError` 401, 403 or 503; takes nothing then."""
        try:
            record, *claims = await self._ask(tenant, lookups)
        except (RedisError, OSError, TimeoutError):
            self._on_degraded()
            if lookups:
                self._on_lookup(False)
            return Admitted(tenant, {})
        return Admitted(_current(record), self._claims(claims))

    async def _ask(self, tenant: Tenant, lookups: Sequence[Lookup]) -> list[object]:
        async with asyncio.timeout(CALL_TIMEOUT_S), self._client.pipeline(transaction=False) as pipeline:
            pipeline.hget(TENANTS_KEY, tenant.tenant_id)
            for lookup in lookups:
                self._index.queue_look_up(pipeline, *lookup)
            replies: list[object] = await pipeline.execute(raise_on_error=False)
            return replies

    def _claims(self, replies: Sequence[object]) -> Mapping[int, int]:
        claims: dict[int, int] = {}
        try:
            for reply in replies:
                claims |= self._index.read_look_up(reply)
        except IndexUnavailable:
            self._on_lookup(False)
        else:
            if replies:
                self._on_lookup(True)
        return claims


def _current(record: object) -> Tenant:
    if isinstance(record, Exception):  # Redis is there and holds something else than our record
        raise store_unavailable()
    if record is None:
        raise ApiError(401, "invalid_api_key", "The tenant of this key does not exist any more.")
    assert isinstance(record, bytes)
    try:
        current = decode_tenant(record)
    except CorruptRecord as error:
        log.error("%s", error)
        raise store_unavailable() from None
    if current.disabled:
        raise ApiError(403, "tenant_disabled", "This tenant is disabled.")
    return current
