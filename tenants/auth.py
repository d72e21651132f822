"""From a key to who is asking: one short cache before the store, one look-up at a time a key.

The look-up is by the key's keyed hash, so how long it takes says nothing of any key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tenants.addresses import is_in_any
from tenants.api_key import hash_key, is_well_formed
from tenants.auth_cache import AuthCache, CachedAccount
from tenants.record_health import KeyFinder
from tenants.store import Account, StoreUnavailable

GRACE_S = 60.0
"""For how long a key that was good keeps working while the store does not answer."""


class InvalidKey(Exception):
    """Malformed, unknown, deleted, expired, or used from elsewhere; callers are not told which."""


class DisabledTenant(Exception):
    """The key is good, its tenant is switched off."""


class Authenticator:
    """Owns this process's cache of keys.

    `clock` tells Unix time in seconds (keys expire by it). An answer of the store counts for `ttl_s`,
    from the moment when it was asked for: a key deleted anywhere is dead here that much later. While
    the store does not answer, what it said last counts for `GRACE_S`, so an outage of the store shorter
    than that ends no tenant's service; `on_stale` is called for each such answer.
    """

    def __init__(
        self,
        store: KeyFinder,
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
        self._pending: dict[str, asyncio.Task[CachedAccount | StoreUnavailable]] = {}
        self._on_stale = on_stale

    async def authenticate(self, key: str, address: str | None) -> Account:
        """Who `key` belongs to, used from `address` (None: unknown, which no list of addresses holds).

        Raises `InvalidKey`, `DisabledTenant` or `StoreUnavailable`.
        """
        if not is_well_formed(key):
            raise InvalidKey
        account = await self._valid(hash_key(self._secret, key))
        if account.key.addresses and not is_in_any(address, account.key.addresses):
            raise InvalidKey
        return _enabled(account)

    async def again(self, account: Account) -> Account:
        """As it is now: a request's body may have come long after its key. Raises as `authenticate` does."""
        return _enabled(await self._valid(account.key.key_hash))

    async def _valid(self, key_hash: str) -> Account:
        account = (await self._look_up(key_hash)).account
        if account is None:
            raise InvalidKey
        if account.key.expires_at is not None and account.key.expires_at <= self._clock():
            raise InvalidKey
        return account

    def forget_key(self, key_id: str) -> None:
        """The key was changed or deleted through this process: that holds at once."""
        self._forget(lambda account: account.key.key_id == key_id)

    def forget_tenant(self, tenant_id: str) -> None:
        """The tenant was changed or deleted through this process: that holds at once."""
        self._forget(lambda account: account.tenant.tenant_id == tenant_id)

    def _forget(self, matches: Callable[[Account], bool]) -> None:
        self._cache.drop(matches)
        self._pending.clear()  # what these will bring was read before the deletion

    async def _look_up(self, key_hash: str) -> CachedAccount:
        last = self._cache.get(key_hash)
        if last is not None and last.is_younger_than(self._ttl_s, self._clock()):
            return last
        answer = await self._ask_once(key_hash)
        if isinstance(answer, CachedAccount):
            return answer
        if last is not None and last.account is not None and last.is_younger_than(GRACE_S, self._clock()):
            self._on_stale()
            return last
        raise answer

    async def _ask_once(self, key_hash: str) -> CachedAccount | StoreUnavailable:
        """All who want the same key wait for the same question; one who leaves does not end it."""
        task = self._pending.get(key_hash)
        if task is None:
            task = asyncio.create_task(self._ask(key_hash))
            self._pending[key_hash] = task
        return await asyncio.shield(task)

    async def _ask(self, key_hash: str) -> CachedAccount | StoreUnavailable:
        me = asyncio.current_task()
        asked_at = self._clock()
        try:
            seen = CachedAccount(await self._store.find_key(key_hash), asked_at)
        except StoreUnavailable as error:
            return error
        else:
            if self._pending.get(key_hash) is me:
                self._cache.put(key_hash, seen)
            return seen
        finally:
            if self._pending.get(key_hash) is me:
                del self._pending[key_hash]


def _enabled(account: Account) -> Account:
    if account.tenant.disabled:
        raise DisabledTenant
    return account
