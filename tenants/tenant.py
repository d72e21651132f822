"""A tenant: who is served, on which terms, and the salt that keeps its cache apart from others'."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tenants.terms import Terms
from tenants.tier import Tier

TenantId = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: TenantId
    name: str
    tier: str
    created_at: float
    """Unix seconds."""
    disabled: bool = False
    """Frozen: nothing starts, and what ran is ended."""
    num_freezes: int = 0
    """How often it was: what ran before the last one is ended, though it was lifted at once."""
    overrides: Mapping[str, Any] = {}
    """Fields of `Terms` that differ from the tier's."""
    version: int = 1
    """Grows with each change; its ETag."""


def terms_of(tier: Tier, overrides: Mapping[str, Any]) -> Terms:
    """The terms that hold. Raises `msgspec.ValidationError`, naming the field, and for an unknown one."""
    unknown = sorted(set(overrides) - set(Terms.__struct_fields__))
    if unknown:
        raise msgspec.ValidationError(f"there is no field {unknown[0]}")
    return msgspec.convert({**msgspec.to_builtins(tier.terms), **overrides}, Terms)


def cache_salt(secret: bytes, tenant_id: str) -> bytes:
    """The tenant's part of the block-hash root: no two tenants share a block."""
    return hmac.digest(secret, b"headrace cache salt\0" + tenant_id.encode(), "sha256")
