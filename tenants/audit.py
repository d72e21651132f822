"""Who changed what in the record: one entry a change, written with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

MAX_ENTRIES = 10_000
"""About so many are kept."""
_SECRET = {"key_hash"}
_ENTRY_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


class Actor(msgspec.Struct, frozen=True):
    """Who asks for a change."""

    tenant_id: str
    key_id: str


LAUNCHER = Actor("", "launcher")
"""headrace itself: at its start, and when it writes a lost record back."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    entry_id: str
    """Grows with time."""
    at: float
    """Unix seconds, by the record's clock."""
    actor: Actor
    action: str
    """`tenant.create`, `tier.update`, `key.delete`, `budget.top_up`, …"""
    target: str
    """Id of what was changed."""
    changes: dict[str, tuple[Any, Any]]
    """Field → (before, after); null where it was or is not there. Never a key or its hash."""


def position(entry_id: str) -> tuple[int, int]:
    """What entries are ordered by: milliseconds of Unix time, and a number within one.

    Raises ValueError for what is no entry's id.
    """
    match = _ENTRY_ID.fullmatch(entry_id)
    parts = (int(match[1]), int(match[2])) if match else (-1, -1)
    if not 0 <= max(parts) < 2**64:
        raise ValueError("this is no id of an audit entry")
    return parts


def changes_between(
    before: msgspec.Struct | None, after: msgspec.Struct | None
) -> dict[str, tuple[Any, Any]]:
    """The fields that differ; those of a struct in a struct by their path, as in `terms.weight`."""
    was, is_now = dict(_fields(before)), dict(_fields(after))
    pairs = {name: (was.get(name), is_now.get(name)) for name in {**was, **is_now}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _fields(value: msgspec.Struct | None, path: str = "") -> Iterator[tuple[str, Any]]:
    for name in () if value is None else value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, msgspec.Struct):
            yield from _fields(field, f"{path}{name}.")
        elif name not in _SECRET:
            yield f"{path}{name}", msgspec.json.decode(msgspec.json.encode(field))
