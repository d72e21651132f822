"""The record of tenants and keys: one protocol, a Redis and a memory store, one suite for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tenants.api_key import ApiKey
from tenants.tenant import Tenant


class Conflict(Exception):
    """Something of that name is already there."""


class NotFound(Exception):
    """Nothing of that name is there."""


class StoreUnavailable(Exception):
    """The store did not answer in time; the caller decides what that means."""


class CorruptRecord(StoreUnavailable):
    """The store answered with something that is not ours. Names the place, never its content."""


class Account(NamedTuple):
    """A key and the tenant that it belongs to."""

    key: ApiKey
    tenant: Tenant


class TenantStore(Protocol):
    """Owns tenants and keys. Every method may raise `StoreUnavailable`."""

    async def seed(self, mark: str, accounts: Sequence[Account]) -> str | None:
        """Writes `accounts` and `mark` into a record that was never seeded, all or nothing.

        Returns None if it did, else the mark that is there; nothing is changed then, so what was
        deleted since stays deleted.
        """

    async def create_tenant(self, tenant: Tenant) -> None:
        """Raises `Conflict` if the id is taken."""

    async def get_tenant(self, tenant_id: str) -> Tenant | None: ...

    async def list_tenants(self) -> list[Tenant]:
        """By id."""

    async def delete_tenant(self, tenant_id: str) -> None:
        """Removes the tenant and all its keys. Raises `NotFound`."""

    async def create_key(self, key: ApiKey) -> None:
        """Raises `NotFound` if its tenant is not there, `Conflict` if its id or hash is taken."""

    async def find_key(self, key_hash: str) -> Account | None:
        """The key and its tenant in one round trip, or None."""

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """By creation, then id. Raises `NotFound`."""

    async def delete_key(self, tenant_id: str, key_id: str) -> None:
        """Raises `NotFound`."""
