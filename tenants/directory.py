"""What the record holds: tiers, tenants of a tier, keys of a tenant. Each has an id and a version. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tenants.api_key import ApiKey
from tenants.tenant import Tenant
from tenants.tier import Tier

Row = Tier | Tenant | ApiKey
Value = TypeVar("Value", Tier, Tenant, ApiKey)


@dataclass(frozen=True, eq=False)
class Kind(Generic[Value]):
    word: str
    """For people, and for the audit log."""
    table: str
    type: type[Value]
    id_of: Callable[[Value], str]
    parent: Kind[Any] | None = None
    parent_id_of: Callable[[Value], str] = lambda value: ""
    fixed: tuple[str, ...] = ()
    """Fields that no change touches."""


TIER = Kind("tier", "tiers", Tier, lambda tier: tier.name)
TENANT = Kind("tenant", "tenants", Tenant, lambda tenant: tenant.tenant_id, TIER, lambda tenant: tenant.tier)
KEY = Kind(
    "key",
    "keys",
    ApiKey,
    lambda key: key.key_id,
    TENANT,
    lambda key: key.tenant_id,
    fixed=("key_hash", "tenant_id"),
)
KINDS: tuple[Kind[Any], ...] = (TIER, TENANT, KEY)
_KINDS_BY_TYPE = {kind.type: kind for kind in KINDS}


def kind_of(row: Row) -> Kind[Any]:
    return _KINDS_BY_TYPE[type(row)]


class Edit(NamedTuple):
    """One row's part in a change; None: it was not, or will not be there."""

    before: Row | None
    after: Row | None


def additions(rows: Iterable[Row]) -> list[Edit]:
    return [Edit(None, row) for row in rows]
