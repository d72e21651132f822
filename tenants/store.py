"""The record of tiers, tenants and keys: one protocol, a Redis and a memory store, one suite for both.

Every change names who asks for it, is written together with its entry in the audit log, and makes
`change_count` grow, which is how other processes learn of it. A change of what is there gives the version
that it was made from; None: whatever is there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from tenants.api_key import ApiKey
from tenants.audit import Actor, AuditEntry
from tenants.tenant import Tenant
from tenants.terms import Terms
from tenants.tier import Tier


class Conflict(Exception):
    """Something of that name is already there, or something else still needs it."""


class NotFound(Exception):
    """Nothing of that name is there."""


class StaleVersion(Exception):
    """It has been changed since the version that the change was made from."""


Trouble = Literal["unreachable", "timeout", "refused", "empty"]


class StoreUnavailable(Exception):
    """The store did not answer as it should; the caller decides what that means."""

    def __init__(self, message: str = "", trouble: Trouble = "unreachable") -> None:
        super().__init__(message)
        self.trouble: Trouble = trouble


class CorruptRecord(StoreUnavailable):
    """The store answered with something that is not ours. Names the place, never its content."""


class Account(NamedTuple):
    """A key, the tenant that it belongs to, and the terms that hold for that."""

    key: ApiKey
    tenant: Tenant
    terms: Terms


class TenantStore(Protocol):
    """Owns tiers, tenants and keys. Every method may raise `StoreUnavailable`."""

    async def create_tier(self, tier: Tier, by: Actor) -> None:
        """Raises `Conflict` if the name is taken."""

    async def get_tier(self, name: str) -> Tier | None: ...

    async def list_tiers(self, after: str = "", limit: int | None = None) -> list[Tier]:
        """By name, those behind `after`."""

    async def put_tier(self, tier: Tier, version: int | None, by: Actor) -> Tier:
        """Replaces it; returns it with its new version. Raises `NotFound` or `StaleVersion`."""

    async def delete_tier(self, name: str, version: int | None, by: Actor) -> None:
        """Raises `NotFound`, `StaleVersion`, or `Conflict` while a tenant is of it."""

    async def create_tenant(self, tenant: Tenant, by: Actor) -> None:
        """Raises `Conflict` if the id is taken, `NotFound` if there is no such tier.

        Raises `msgspec.ValidationError` for overrides that are no `Terms`; so does `put_tenant`.
        """

    async def get_tenant(self, tenant_id: str) -> Tenant | None: ...

    async def list_tenants(self, after: str = "", limit: int | None = None) -> list[Tenant]:
        """By id, those behind `after`."""

    async def put_tenant(self, tenant: Tenant, version: int | None, by: Actor) -> Tenant:
        """Replaces it; returns it with its new version.

        Raises `NotFound`, of the tier too, or `StaleVersion`.
        """

    async def delete_tenant(self, tenant_id: str, version: int | None, by: Actor) -> None:
        """Removes the tenant and all its keys. Raises `NotFound` or `StaleVersion`."""

    async def create_key(self, key: ApiKey, by: Actor) -> None:
        """Raises `NotFound` if its tenant is not there, `Conflict` if its id or hash is taken."""

    async def find_key(self, key_hash: str) -> Account | None:
        """The key, its tenant and its terms in one round trip, or None."""

    async def get_key(self, key_id: str) -> ApiKey | None: ...

    async def list_keys(
        self, tenant_id: str | None = None, after: str = "", limit: int | None = None
    ) -> list[ApiKey]:
        """By id, those behind `after`; of one tenant, or of all. Raises `NotFound` if that is not there."""

    async def put_key(self, key: ApiKey, version: int | None, by: Actor) -> ApiKey:
        """Replaces it; its hash and its tenant stay. Returns it with its new version.

        Raises `NotFound` or `StaleVersion`.
        """

    async def delete_key(self, key_id: str, version: int | None, by: Actor) -> None:
        """Raises `NotFound` or `StaleVersion`."""

    async def change_count(self) -> int:
        """Grows with every change of the record, whoever makes it."""

    async def note(self, entry: AuditEntry) -> None:
        """Writes the entry of a change elsewhere (`budget.top_up`); its id is made here."""

    async def list_audit(self, before: str = "", limit: int = 100) -> list[AuditEntry]:
        """The latest first, those older than entry `before`. Raises ValueError if that is no entry's id."""
