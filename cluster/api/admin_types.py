"""What the admin API takes and shows. A key is shown once, when it is made; its hash never."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from tenants.api_key import ApiKey, Scope
from tenants.tenant import Tenant
from tenants.tier import TIERS

MAX_KEY_LIFE_S = 10 * 366 * 86_400


def _known_tier(name: str) -> str:
    if name not in TIERS:
        known = ", ".join(sorted(TIERS))
        raise PydanticCustomError("invalid_value", "Input should be one of: {known}", {"known": known})
    return name


def _without_repeats(scopes: list[Scope]) -> list[Scope]:
    if len(set(scopes)) != len(scopes):
        raise PydanticCustomError("invalid_value", "Input should name each scope once")
    return scopes


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class NewTenant(_Body):
    tenant_id: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    name: str | None = Field(None, min_length=1, max_length=128, description="default: the id")
    tier: Annotated[str, AfterValidator(_known_tier)] = Field(json_schema_extra={"enum": [*sorted(TIERS)]})


class NewKey(_Body):
    scopes: Annotated[list[Scope], AfterValidator(_without_repeats)] = Field(
        ["inference"], min_length=1, max_length=3
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
