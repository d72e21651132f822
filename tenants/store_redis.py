"""The record in Redis: JSON values parsed by schema, every change of two keys in one script.

Layout, all in one slot (`NOTES.md` says why):
    headrace:{directory}:mark               who seeded the record
    headrace:{directory}:tenants            hash: tenant id → Tenant
    headrace:{directory}:keys               hash: key hash → ApiKey
    headrace:{directory}:keys_of:<tenant>   hash: key id → key hash
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError, ResponseError

from tenants.api_key import ApiKey
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.store import Account, Conflict, CorruptRecord, NotFound, StoreUnavailable
from tenants.tenant import Tenant

_MARK = "headrace:{directory}:mark"
TENANTS_KEY = "headrace:{directory}:tenants"
_KEYS = "headrace:{directory}:keys"

Value = TypeVar("Value", Tenant, ApiKey)


def _keys_of(tenant_id: str) -> str:
    return f"headrace:{{directory}}:keys_of:{tenant_id}"


class RedisTenantStore:
    """A `TenantStore` over a client that someone else owns and closes.

    Every call ends within `CALL_TIMEOUT_S`. Whatever Redis answers that is not ours raises `CorruptRecord`.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._seed = self._script("seed")
        self._create_key = self._script("create_key")
        self._find_key = self._script("find_key")
        self._list_keys = self._script("list_keys")
        self._delete_key = self._script("delete_key")
        self._delete_tenant = self._script("delete_tenant")

    async def seed(self, mark: str, accounts: Sequence[Account]) -> str | None:
        keys = [_MARK, TENANTS_KEY, _KEYS]
        args: list[str | bytes] = [mark]
        for key, tenant in accounts:
            keys.append(_keys_of(tenant.tenant_id))
            args += [tenant.tenant_id, _encode(tenant), key.key_id, key.key_hash, _encode(key)]
        there = await _bounded(self._seed(keys=keys, args=args))
        return None if there is None else there.decode(errors="replace")

    async def create_tenant(self, tenant: Tenant) -> None:
        if not await _bounded(self._client.hsetnx(TENANTS_KEY, tenant.tenant_id, _encode(tenant))):
            raise Conflict(f"tenant {tenant.tenant_id} already exists")

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        value = await _bounded(self._client.hget(TENANTS_KEY, tenant_id))
        return None if value is None else decode_tenant(value)

    async def list_tenants(self) -> list[Tenant]:
        values = await _bounded(self._client.hvals(TENANTS_KEY))
        return sorted(map(decode_tenant, values), key=lambda tenant: tenant.tenant_id)

    async def delete_tenant(self, tenant_id: str) -> None:
        keys = [TENANTS_KEY, _KEYS, _keys_of(tenant_id)]
        if not await _bounded(self._delete_tenant(keys=keys, args=[tenant_id])):
            raise NotFound(f"there is no tenant {tenant_id}")

    async def create_key(self, key: ApiKey) -> None:
        keys = [TENANTS_KEY, _KEYS, _keys_of(key.tenant_id)]
        args: list[str | bytes] = [key.tenant_id, key.key_id, key.key_hash, _encode(key)]
        outcome = await _bounded(self._create_key(keys=keys, args=args))
        if outcome == b"no_tenant":
            raise NotFound(f"there is no tenant {key.tenant_id}")
        if outcome == b"taken":
            raise Conflict(f"key {key.key_id} already exists")

    async def find_key(self, key_hash: str) -> Account | None:
        found = await _bounded(self._find_key(keys=[TENANTS_KEY, _KEYS], args=[key_hash]))
        if not found:
            return None
        key = _decode(ApiKey, found[0], _KEYS)
        tenant = decode_tenant(found[-1])
        if (key.key_hash, key.tenant_id) != (key_hash, tenant.tenant_id):
            raise CorruptRecord(f"a value in {_KEYS} belongs to another key")
        return Account(key, tenant)

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        keys = [TENANTS_KEY, _KEYS, _keys_of(tenant_id)]
        values = await _bounded(self._list_keys(keys=keys, args=[tenant_id]))
        if values is None:
            raise NotFound(f"there is no tenant {tenant_id}")
        found = [_decode(ApiKey, value, _KEYS) for value in values]
        return sorted(found, key=lambda key: (key.created_at, key.key_id))

    async def delete_key(self, tenant_id: str, key_id: str) -> None:
        if not await _bounded(self._delete_key(keys=[_KEYS, _keys_of(tenant_id)], args=[key_id])):
            raise NotFound(f"tenant {tenant_id} has no key {key_id}")

    def _script(self, name: str) -> AsyncScript:
        return self._client.register_script(files("tenants").joinpath(f"{name}.lua").read_text())


async def _bounded(call: Awaitable[Any]) -> Any:
    """The call's answer. One deadline covers connecting, waiting for a connection and the answer."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await call
    except TimeoutError as error:
        raise StoreUnavailable(f"Redis did not answer within {CALL_TIMEOUT_S * 1000:.0f} ms") from error
    except ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise CorruptRecord("a key under headrace:{directory} holds another type than ours") from error
        raise StoreUnavailable(f"Redis refused: {error}") from error
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis cannot be reached ({type(error).__name__})") from error


def decode_tenant(value: bytes) -> Tenant:
    """A field of `TENANTS_KEY`, for who reads it in a pipeline of their own. Raises `CorruptRecord`."""
    return _decode(Tenant, value, TENANTS_KEY)


def _encode(value: Tenant | ApiKey) -> bytes:
    return msgspec.json.encode(value)


def _decode(kind: type[Value], value: bytes, place: str) -> Value:
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, RecursionError):
        # `from None`: the cause quotes what was found
        raise CorruptRecord(f"a value in {place} is no {kind.__name__}") from None
