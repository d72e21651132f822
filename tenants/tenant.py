"""A tenant: who is served, and the salt that keeps its cache apart from others'."""

from __future__ import annotations

import hmac
from typing import Annotated

import msgspec

TenantId = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: TenantId
    name: str
    tier: str
    created_at: float
    """Unix seconds."""
    disabled: bool = False


def cache_salt(secret: bytes, tenant_id: str) -> bytes:
    """The tenant's part of the block-hash root: no two tenants share a block."""
    return hmac.digest(secret, b"headrace cache salt\0" + tenant_id.encode(), "sha256")
