"""What the admin API shows. A key is shown once, when it is made; its hash never."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tenants.api_key import ApiKey, Scope
from tenants.audit import AuditEntry
from tenants.ledger.grant import Kind, Standing
from tenants.tenant import Tenant
from tenants.terms import Limits, Terms
from tenants.tier import Tier


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["tier"] = "tier"
    name: str
    terms: Terms
    version: int


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["tenant"] = "tenant"
    tenant_id: str
    name: str
    tier: str
    overrides: Mapping[str, Any]
    disabled: bool
    created_at: float
    version: int


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["key"] = "key"
    key_id: str
    tenant_id: str
    name: str
    scopes: tuple[Scope, ...]
    hint: str
    """The key's last four characters."""
    limits: Limits | None
    addresses: tuple[str, ...]
    created_at: float
    expires_at: float | None
    version: int
    rotated_to: str | None
    """The id of the key that a rotation made in this one's stead."""


class NewKeyView(KeyView, frozen=True, kw_only=True):
    key: str
    """Nowhere else and never again."""


class RotatedKeyView(NewKeyView, frozen=True, kw_only=True):
    old_key_id: str
    old_expires_at: float | None
    """Until then the old one works beside this one."""


ResourceView = TierView | TenantView | KeyView


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    key_id: str | None
    """Of the key whose own limit it is; null: the tenant's."""
    limit: int
    remaining: int
    reset_s: float
    """Until all of it is there again, if nothing else is taken."""
    soft: bool
    """The tenant is being warned: most of it is used up."""


class LimitsView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["limits"] = "limits"
    tenant_id: str
    key_id: str | None
    model: str
    terms: Terms
    key_limits: Limits | None
    limits: tuple[LimitView, ...]


class AuditView(AuditEntry, frozen=True, kw_only=True):
    object: Literal["audit_entry"] = "audit_entry"


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[AuditView, ...]
    has_more: bool
    next_before: str | None


def tier_view(tier: Tier) -> TierView:
    return TierView(name=tier.name, terms=tier.terms, version=tier.version)


def tenant_view(tenant: Tenant) -> TenantView:
    return TenantView(
        tenant_id=tenant.tenant_id,
        name=tenant.name,
        tier=tenant.tier,
        overrides=tenant.overrides,
        disabled=tenant.disabled,
        created_at=tenant.created_at,
        version=tenant.version,
    )


def key_view(key: ApiKey) -> KeyView:
    return KeyView(**_of_key(key))


def new_key_view(record: ApiKey, key: str) -> NewKeyView:
    return NewKeyView(**_of_key(record), key=key)


def rotated_key_view(record: ApiKey, key: str, old: ApiKey) -> RotatedKeyView:
    return RotatedKeyView(**_of_key(record), key=key, old_key_id=old.key_id, old_expires_at=old.expires_at)


def _of_key(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in KeyView.__struct_fields__ if name != "object"}


def limits_view(
    *, tenant_id: str, key: ApiKey | None, model: str, terms: Terms, standing: Standing
) -> LimitsView:
    return LimitsView(
        tenant_id=tenant_id,
        key_id=key.key_id if key else None,
        model=model,
        terms=terms,
        key_limits=key.limits if key else None,
        limits=tuple(
            LimitView(
                kind=gauge.kind,
                key_id=gauge.key_id,
                limit=gauge.limit,
                remaining=gauge.remaining,
                reset_s=gauge.reset_s,
                soft=gauge.is_soft,
            )
            for gauge in standing.gauges
        ),
    )


def audit_view(entry: AuditEntry) -> AuditView:
    return AuditView(**msgspec.structs.asdict(entry))
