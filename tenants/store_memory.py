"""The record in memory: for tests and simulations. It forgets everything with its process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from tenants.api_key import ApiKey
from tenants.audit import MAX_ENTRIES, AuditEntry, position
from tenants.directory import KEY, KINDS, TENANT, TIER, Edit, Kind, Value, additions, kind_of
from tenants.snapshot import Snapshot
from tenants.store import Account
from tenants.store_rules import StoreRules
from tenants.tenant import Tenant, terms_of
from tenants.tier import BUILT_IN, Tier


class MemoryTenantStore(StoreRules):
    """A `TenantStore` of plain dicts, which knows the built-in tiers from the start; never unavailable.

    No method ever waits, so each one is atomic. `clock`, Unix seconds, dates the audit log. It is a
    `LosableRecord` too; its lock holds until a `restore`.
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._rows = _no_rows()
        self._hashes: dict[str, str] = {}  # key hash → key id
        self._audit: list[AuditEntry] = []
        self._count = 0
        self._mark: str | None = None
        self._epoch: str | None = None
        self._owner: str | None = None
        self._apply(additions(BUILT_IN))

    async def change_count(self) -> int:
        return self._count

    async def find_key(self, key_hash: str) -> Account | None:
        if key_hash not in self._hashes:
            return None
        key: ApiKey = self._rows[KEY.table][self._hashes[key_hash]]
        tenant: Tenant = self._rows[TENANT.table][key.tenant_id]
        tier: Tier = self._rows[TIER.table][tenant.tier]
        return Account(key, tenant, terms_of(tier, tenant.overrides))

    async def note(self, entry: AuditEntry) -> None:
        millis = round(self._clock() * 1000)
        latest = position(self._audit[-1].entry_id) if self._audit else (0, 0)
        first, second = max((millis, 0), (latest[0], latest[1] + 1))
        self._audit.append(msgspec.structs.replace(entry, entry_id=f"{first}-{second}", at=first / 1000))
        del self._audit[:-MAX_ENTRIES]

    async def list_audit(self, before: str = "", limit: int = 100) -> list[AuditEntry]:
        end = position(before) if before else None
        older = [entry for entry in self._audit if end is None or position(entry.entry_id) < end]
        return older[::-1][:limit]

    async def epoch(self) -> str | None:
        return self._epoch

    async def mark(self) -> str | None:
        return self._mark

    async def lock(self, owner: str) -> bool:
        if self._owner is None and self._epoch is None:
            self._owner = owner
        return self._owner == owner

    async def renew(self, owner: str) -> bool:
        return self._owner == owner

    async def restore(self, snapshot: Snapshot, owner: str) -> bool:
        if self._owner != owner:
            return False
        self._owner = None
        if self._count == 0:
            self._rows = _no_rows()
        if self._mark is None:
            self._mark = snapshot.mark
            self._apply(snapshot.additions())
        self._epoch = secrets.token_hex(8)
        self._count += 1
        await self.note(snapshot.entry())
        return True

    async def snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            mark=self._mark or "",
            taken_at=now,
            change_count=self._count,
            tiers=tuple(self._rows[TIER.table].values()),
            tenants=tuple(self._rows[TENANT.table].values()),
            keys=tuple(self._rows[KEY.table].values()),
        )

    async def _get(self, kind: Kind[Value], row_id: str) -> Value | None:
        return self._rows[kind.table].get(row_id)

    async def _list(
        self, kind: Kind[Value], parent_id: str | None, after: str, limit: int | None
    ) -> list[Value]:
        rows: dict[str, Value] = self._rows[kind.table]
        found = [
            rows[row_id]
            for row_id in sorted(rows)
            if row_id > after and parent_id in (None, kind.parent_id_of(rows[row_id]))
        ]
        return found[:limit]

    async def _is_hash_taken(self, key_hash: str) -> bool:
        return key_hash in self._hashes

    async def _commit(self, count: int, edits: Sequence[Edit], entry: AuditEntry) -> bool:
        if count != self._count:
            return False
        self._apply(edits)
        self._count += 1
        await self.note(entry)
        return True

    def _apply(self, edits: Iterable[Edit]) -> None:
        for before, after in edits:
            if before is not None:
                kind = kind_of(before)
                del self._rows[kind.table][kind.id_of(before)]
            if isinstance(before, ApiKey):
                del self._hashes[before.key_hash]
            if after is not None:
                kind = kind_of(after)
                self._rows[kind.table][kind.id_of(after)] = after
            if isinstance(after, ApiKey):
                self._hashes[after.key_hash] = after.key_id


def _no_rows() -> dict[str, dict[str, Any]]:
    return {kind.table: {} for kind in KINDS}
