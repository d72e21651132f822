"""Tiers, tenants and keys as a file wants them and as the record has them. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenants.api_key import Scope
from tenants.tenant import Tenant
from tenants.terms import Limits, Terms
from tenants.tier import Tier


def as_json(value: Any) -> Any:
    """As JSON has it: what was read from the API and what is meant for it compare equal."""
    return msgspec.json.decode(msgspec.json.encode(value))


class KnownKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as the API shows it."""

    key_id: str
    tenant_id: str
    name: str
    scopes: tuple[Scope, ...]
    hint: str
    limits: Limits | None = None
    addresses: tuple[str, ...] = ()
    created_at: float = 0.0
    expires_at: float | None = None
    version: int = 1
    rotated_to: str | None = None

    def was_made_to_live(self, seconds: int) -> bool:
        """As near as two readings of a clock tell."""
        return self.expires_at is not None and abs(self.expires_at - self.created_at - seconds) < 1


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All that is there."""

    tiers: Mapping[str, Tier] = {}
    tenants: Mapping[str, Tenant] = {}
    keys: tuple[KnownKey, ...] = ()

    def keys_of(self, tenant_id: str) -> list[KnownKey]:
        return [key for key in self.keys if key.tenant_id == tenant_id]


class WantedKey(msgspec.Struct, frozen=True, kw_only=True):
    scopes: tuple[Scope, ...] = ("inference",)
    limits: Limits | None = None
    addresses: tuple[str, ...] = ()
    expires_in_s: int | None = None
    """Counts from the key's making; of a key that is there it says nothing."""


class WantedTenant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tier: str
    overrides: Mapping[str, Any] = {}
    disabled: bool | None = None
    """None: as it is. Freezing is an act of the moment, which a file does not undo unless it says so."""
    keys: Mapping[str, WantedKey] | None = None
    """By name. None: the file does not speak of this tenant's keys."""


class WantedDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. None: it does not speak of these, and they are left alone."""

    tiers: Mapping[str, Terms] | None = None
    tenants: Mapping[str, WantedTenant] | None = None
