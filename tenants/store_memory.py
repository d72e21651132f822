"""The record in memory: for tests and simulations. It forgets everything with its process."""

from __future__ import annotations

from collections.abc import Sequence

from tenants.api_key import ApiKey
from tenants.store import Account, Conflict, NotFound
from tenants.tenant import Tenant


class MemoryTenantStore:
    """A `TenantStore` of plain dicts; never unavailable. No method awaits, so each one is atomic."""

    def __init__(self) -> None:
        self._mark: str | None = None
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, ApiKey] = {}  # by hash

    async def seed(self, mark: str, accounts: Sequence[Account]) -> str | None:
        if self._mark is not None:
            return self._mark
        self._mark = mark
        for key, tenant in accounts:
            self._tenants.setdefault(tenant.tenant_id, tenant)
            self._keys[key.key_hash] = key
        return None

    async def create_tenant(self, tenant: Tenant) -> None:
        if tenant.tenant_id in self._tenants:
            raise Conflict(f"tenant {tenant.tenant_id} already exists")
        self._tenants[tenant.tenant_id] = tenant

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        return self._tenants.get(tenant_id)

    async def list_tenants(self) -> list[Tenant]:
        return [self._tenants[tenant_id] for tenant_id in sorted(self._tenants)]

    async def delete_tenant(self, tenant_id: str) -> None:
        self._require_tenant(tenant_id)
        del self._tenants[tenant_id]
        self._keys = {hash_: key for hash_, key in self._keys.items() if key.tenant_id != tenant_id}

    async def create_key(self, key: ApiKey) -> None:
        self._require_tenant(key.tenant_id)
        taken_ids = {other.key_id for other in self._keys.values() if other.tenant_id == key.tenant_id}
        if key.key_hash in self._keys or key.key_id in taken_ids:
            raise Conflict(f"key {key.key_id} already exists")
        self._keys[key.key_hash] = key

    async def find_key(self, key_hash: str) -> Account | None:
        key = self._keys.get(key_hash)
        return None if key is None else Account(key, self._tenants[key.tenant_id])

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        self._require_tenant(tenant_id)
        keys = [key for key in self._keys.values() if key.tenant_id == tenant_id]
        return sorted(keys, key=lambda key: (key.created_at, key.key_id))

    async def delete_key(self, tenant_id: str, key_id: str) -> None:
        for key_hash, key in self._keys.items():
            if (key.tenant_id, key.key_id) == (tenant_id, key_id):
                del self._keys[key_hash]
                return
        raise NotFound(f"tenant {tenant_id} has no key {key_id}")

    def _require_tenant(self, tenant_id: str) -> None:
        if tenant_id not in self._tenants:
            raise NotFound(f"there is no tenant {tenant_id}")
