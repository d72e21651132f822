"""Field by field: what differs between two things, as plain values. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from cluster.admin_cli.actions import ABSENT, Change
from cluster.admin_cli.directory import KnownKey, WantedKey, as_json
from tenants.terms import Limits


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    fields = dict.fromkeys([*before, *after])
    pairs = ((field, before.get(field, ABSENT), after.get(field, ABSENT)) for field in fields)
    return tuple(Change(field, old, new) for field, old, new in pairs if old != new)


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is inside a field is told as `field.inner`. A field that is None says nothing."""
    told: dict[str, Any] = {}
    for field, value in fields.items():
        if isinstance(value, Mapping):
            told |= {f"{field}.{inner}": held for inner, held in value.items()}
        elif value is not None:
            told[field] = value
    return told


def only_changed(body: Mapping[str, Any], changes: tuple[Change, ...]) -> dict[str, Any]:
    """Of a patch the fields in which something changes, each whole."""
    changed = {change.field.partition(".")[0] for change in changes}
    return {field: value for field, value in body.items() if field in changed}


def key_fields(key: KnownKey | WantedKey) -> dict[str, Any]:
    """What a patch can change, in one form for what means the same."""
    limits = {} if key.limits is None else as_json(key.limits)
    plain = as_json(Limits())
    return {
        "scopes": sorted(key.scopes),
        "limits": {field: value for field, value in limits.items() if value != plain[field]} or None,
        "addresses": sorted({network_of(address) for address in key.addresses}),
    }


def network_of(address: str) -> str:
    """As the record keeps it: `10.1.2.3/8` is `10.0.0.0/8`. What is no address stays as it is."""
    try:
        return str(ipaddress.ip_network(address, strict=False))
    except ValueError:
        return address
