"""What the admin API takes and shows. A key is shown once, when it is made; its hash never."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from tenants.api_key import ApiKey, Scope
from tenants.tenant import Tenant
from tenants.tier import TIERS

_TENANT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MAX_KEY_LIFE_S = 10 * 366 * 86_400


def _known_tier(name: str) -> str:
    if name not in TIERS:
        known = ", ".join(sorted(TIERS))
        raise PydanticCustomError("invalid_value", "must be one of: {known}", {"known": known})
    return name


def _usable_id(tenant_id: str) -> str:
    if not _TENANT_ID.fullmatch(tenant_id):
        message = "must be 1 to 63 characters from a-z, 0-9, _ and -, the first a letter or digit"
        raise PydanticCustomError("invalid_value", message)
    return tenant_id


def _at_least_one_once(scopes: list[Scope]) -> list[Scope]:
    if not scopes:
        raise PydanticCustomError("invalid_value", "must name at least one scope")
    if len(set(scopes)) != len(scopes):
        raise PydanticCustomError("invalid_value", "must name each scope once")
    return scopes


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class NewTenant(_Body):
    tenant_id: Annotated[str, AfterValidator(_usable_id)] = Field(
        json_schema_extra={"pattern": f"^{_TENANT_ID.pattern}$"}
    )
    name: str | None = Field(None, min_length=1, max_length=128, description="default: the id")
    tier: Annotated[str, AfterValidator(_known_tier)] = Field(json_schema_extra={"enum": [*sorted(TIERS)]})


class NewKey(_Body):
    scopes: Annotated[list[Scope], AfterValidator(_at_least_one_once)] = Field(
        ["inference"], json_schema_extra={"minItems": 1, "uniqueItems": True}
    )
    expires_in_s: int | None = Field(None, ge=1, le=MAX_KEY_LIFE_S, description="default: never")


def tenant_view(tenant: Tenant) -> dict[str, Any]:
    return {
        "object": "tenant",
        "tenant_id": tenant.tenant_id,
        "name": tenant.name,
        "tier": tenant.tier,
        "created_at": tenant.created_at,
        "disabled": tenant.disabled,
    }


def key_view(key: ApiKey) -> dict[str, Any]:
    return {
        "object": "key",
        "key_id": key.key_id,
        "tenant_id": key.tenant_id,
        "scopes": key.scopes,
        "hint": key.hint,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
    }


def list_view(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": items}
