"""From a key to who is asking: one short cache before the store, one look-up at a time a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from tenants.api_key import ApiKey, Scope, hash_key, is_well_formed
from tenants.auth_cache import AuthCache, Seen
from tenants.store import Account, StoreUnavailable, TenantStore
from tenants.tenant import Tenant

GRACE_S = 60.0
"""For how long a key that was good keeps working while the store does not answer."""


class InvalidKey(Exception):
    """Malformed, unknown, deleted or expired; callers are not told which."""


class DisabledTenant(Exception):
    """The key is good, its tenant is switched off."""


class Identity(msgspec.Struct, frozen=True):
    tenant: Tenant
    key: ApiKey

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return self.key.scopes


class Authenticator:
    """Owns this process's cache of keys.

    `clock` tells Unix time in seconds (keys expire by it). An answer of the store counts for `ttl_s`,
    from the moment when it was asked for: a key deleted anywhere is dead here that much later. While
    the store does not answer, what it said last counts for `GRACE_S`, so an outage of the store shorter
    than that ends no tenant's service; `on_stale` is called for each such answer.
    """

    def __init__(
        self,
        store: TenantStore,
        secret: bytes,
        clock: Callable[[], float],
        ttl_s: float = 0.5,
        max_entries: int = 4096,
        on_stale: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._secret = secret
        self._clock = clock
        self._ttl_s = ttl_s
        self._cache = AuthCache(max_entries)
        self._pending: dict[str, asyncio.Task[Seen | StoreUnavailable]] = {}
        self._on_stale = on_stale

    async def authenticate(self, key: str) -> Identity:
        """Who `key` belongs to. Raises `InvalidKey`, `DisabledTenant` or `StoreUnavailable`."""
        if not is_well_formed(key):
            raise InvalidKey
        seen = await self._look_up(hash_key(self._secret, key))
        if seen.account is None:
            raise InvalidKey
        record, tenant = seen.account
        if record.expires_at is not None and record.expires_at <= self._clock():
            raise InvalidKey
        if tenant.disabled:
            raise DisabledTenant
        return Identity(tenant, record)

    def forget_key(self, key_id: str) -> None:
        """The key was deleted through this process: it is dead at once."""
        self._forget(lambda account: account.key.key_id == key_id)

    def forget_tenant(self, tenant_id: str) -> None:
        """The tenant was deleted through this process: its keys are dead at once."""
        self._forget(lambda account: account.tenant.tenant_id == tenant_id)

    def _forget(self, matches: Callable[[Account], bool]) -> None:
        self._cache.drop(matches)
        self._pending.clear()  # what these will bring was read before the deletion

    async def _look_up(self, key_hash: str) -> Seen:
        last = self._cache.get(key_hash)
        if last is not None and last.is_younger_than(self._ttl_s, self._clock()):
            return last
        answer = await self._ask_once(key_hash)
        if isinstance(answer, Seen):
            return answer
        if last is not None and last.account is not None and last.is_younger_than(GRACE_S, self._clock()):
            self._on_stale()
            return last
        raise answer

    async def _ask_once(self, key_hash: str) -> Seen | StoreUnavailable:
        """All who want the same key wait for the same question; one who leaves does not end it."""
        task = self._pending.get(key_hash)
        if task is None:
            task = asyncio.create_task(self._ask(key_hash))
            self._pending[key_hash] = task
        return await asyncio.shield(task)

    async def _ask(self, key_hash: str) -> Seen | StoreUnavailable:
        me = asyncio.current_task()
        asked_at = self._clock()
        try:
            seen = Seen(await self._store.find_key(key_hash), asked_at)
        except StoreUnavailable as error:
            return error
        else:
            if self._pending.get(key_hash) is me:
                self._cache.put(key_hash, seen)
            return seen
        finally:
            if self._pending.get(key_hash) is me:
                del self._pending[key_hash]
