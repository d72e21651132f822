"""What the record holds, read through the API."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from cluster.admin_cli.client import AdminClient
from cluster.admin_cli.directory import Known, KnownKey
from cluster.admin_cli.failures import CannotRun
from tenants.tenant import Tenant
from tenants.tier import Tier

Value = TypeVar("Value")


def read_known(client: AdminClient) -> Known:
    """Raises `RefusedByServer` or `CannotRun`."""
    return Known(
        tiers={tier.name: tier for tier in _all(client, "/tiers", Tier)},
        tenants={tenant.tenant_id: tenant for tenant in _all(client, "/tenants", Tenant)},
        keys=tuple(_all(client, "/keys", KnownKey)),
    )


def _all(client: AdminClient, path: str, kind: type[Value]) -> list[Value]:
    return [_read(row, kind, path) for row in client.list_all(path)]


def _read(row: Any, kind: type[Value], path: str) -> Value:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise CannotRun(f"the cluster's {path} are not as this version knows them: {error}") from None
