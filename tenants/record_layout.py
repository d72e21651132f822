"""Where the record lies in Redis, and the commands that write a change. Pure.

All in one slot (`NOTES.md` says why), nothing of it expires but the lock:
    headrace:{directory}:epoch                 there while the record is whole
    headrace:{directory}:mark                  who seeded it
    headrace:{directory}:changes               change count
    headrace:{directory}:audit                 stream of audit entries
    headrace:{directory}:lock                  who re-seeds
    headrace:{directory}:tiers|tenants|keys    hash: id → row
    …:tiers_by_id|tenants_by_id|keys_by_id     sorted set of ids, all of score 0
    …:tenants_of:<tier>|keys_of:<tenant>       the same of one parent
    headrace:{directory}:hashes                hash: key hash → key id
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tenants.api_key import ApiKey
from tenants.directory import KEY, TENANT, TIER, Edit, Kind, Row, Value, kind_of
from tenants.store import CorruptRecord

_ROOT = "headrace:{directory}:"
MARK_KEY = f"{_ROOT}mark"
CHANGES_KEY = f"{_ROOT}changes"
AUDIT_KEY = f"{_ROOT}audit"
LOCK_KEY = f"{_ROOT}lock"
HASHES_KEY = f"{_ROOT}hashes"

Command = tuple[str | int, ...]
"""Its second part is the key that it is about. No bytes: Redis' msgpack knows text only."""


def rows_key(kind: Kind[Any]) -> str:
    return f"{_ROOT}{kind.table}"


TIERS_KEY, TENANTS_KEY, KEYS_KEY = rows_key(TIER), rows_key(TENANT), rows_key(KEY)


def ids_key(kind: Kind[Any], parent_id: str | None = None) -> str:
    """Of all rows, or those of one parent."""
    return f"{_ROOT}{kind.table}_by_id" if parent_id is None else f"{_ROOT}{kind.table}_of:{parent_id}"


def writes(edits: Sequence[Edit]) -> Iterator[Command]:
    for before, after in edits:
        if before is not None:
            yield from _removal(before)
        if after is not None:
            yield from _addition(after)


def _removal(row: Row) -> Iterator[Command]:
    kind = kind_of(row)
    row_id = kind.id_of(row)
    yield "HDEL", rows_key(kind), row_id
    for index in _indexes(kind, row):
        yield "ZREM", index, row_id
    if isinstance(row, ApiKey):
        yield "HDEL", HASHES_KEY, row.key_hash


def _addition(row: Row) -> Iterator[Command]:
    kind = kind_of(row)
    row_id = kind.id_of(row)
    yield "HSET", rows_key(kind), row_id, msgspec.json.encode(row).decode()
    for index in _indexes(kind, row):
        yield "ZADD", index, 0, row_id
    if isinstance(row, ApiKey):
        yield "HSET", HASHES_KEY, row.key_hash, row_id


def _indexes(kind: Kind[Any], row: Row) -> list[str]:
    of_all = ids_key(kind)
    return [of_all] if kind.parent is None else [of_all, ids_key(kind, kind.parent_id_of(row))]


def decode_row(kind: Kind[Value], value: object) -> Value:
    """Raises `CorruptRecord`, which names the place and never the content."""
    try:
        if not isinstance(value, bytes):
            raise msgspec.DecodeError
        return msgspec.json.decode(value, type=kind.type)
    except (msgspec.DecodeError, RecursionError):
        # `from None`: the cause quotes what was found
        raise CorruptRecord(f"a value in {rows_key(kind)} is no {kind.type.__name__}") from None
