"""Outcomes in plain Python, for tests and for one process alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tenants.outcomes.outcome import (
    KEEP_S,
    LEASE_S,
    MAX_OUTCOMES,
    MAX_STORED_BYTES,
    Begun,
    Finished,
    Found,
    InProgress,
    Kept,
    Mark,
    NoRoom,
    Reused,
    TooLarge,
)


@dataclass(frozen=True, slots=True)
class _Record:
    body_hash: str
    owner: str
    since: float
    until: float
    kept: Kept | None = None
    """None: it has not ended."""
    sealed: bytes = b""


class MemoryOutcomes:
    """An `OutcomeStore`. `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[tuple[str, str], _Record] = {}

    async def begin(self, mark: Mark, owner: str) -> Found:
        now = self._clock()
        self._drop_old(now)
        record = self._records.get(_name(mark))
        if record is None:
            self._records[_name(mark)] = _Record(mark.body_hash, owner, now, now + LEASE_S)
            return Begun()
        if record.body_hash != mark.body_hash:
            return Reused()
        if record.kept is None:
            return InProgress(now - record.since)
        if record.kept == "stored":
            return Finished(record.sealed)
        return TooLarge() if record.kept == "too_large" else NoRoom()

    async def renew(self, mark: Mark, owner: str) -> bool:
        record = self._owned(mark, owner)
        if record is not None:
            self._records[_name(mark)] = replace(record, until=self._clock() + LEASE_S)
        return record is not None

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> Kept | None:
        record = self._owned(mark, owner)
        if record is None:
            return None
        now = self._clock()
        self._drop_old(now)
        kept = self._kept(mark.tenant_id, sealed)
        stored = sealed if sealed is not None and kept == "stored" else b""
        self._records[_name(mark)] = replace(record, kept=kept, sealed=stored, until=now + KEEP_S)
        return kept

    async def fail(self, mark: Mark, owner: str) -> bool:
        record = self._owned(mark, owner)
        if record is not None:
            del self._records[_name(mark)]
        return record is not None

    def _owned(self, mark: Mark, owner: str) -> _Record | None:
        record = self._records.get(_name(mark))
        if record is None or record.kept is not None or record.owner != owner:
            return None
        return record if record.until > self._clock() else None

    def _kept(self, tenant_id: str, sealed: bytes | None) -> Kept:
        if sealed is None:
            return "too_large"
        its = [record for (whose, _), record in self._records.items() if whose == tenant_id]
        stored = [len(record.sealed) for record in its if record.kept == "stored"]
        has_room = len(stored) < MAX_OUTCOMES and sum(stored) + len(sealed) <= MAX_STORED_BYTES
        return "stored" if has_room else "no_room"

    def _drop_old(self, now: float) -> None:
        self._records = {name: record for name, record in self._records.items() if record.until > now}


def _name(mark: Mark) -> tuple[str, str]:
    return mark.tenant_id, mark.key_hash
