"""Outcomes in plain Python, for tests and for one process alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tenants.outcomes.outcome import (
    KEEP_S,
    LEASE_S,
    Begun,
    Finished,
    Found,
    Mark,
    Reused,
    Running,
    TooLarge,
)


@dataclass(frozen=True, slots=True)
class _Record:
    body_hash: str
    owner: str | None
    """None: it has ended."""
    since: float
    until: float
    sealed: bytes | None = None


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
        if record.owner is not None:
            return Running(now - record.since)
        return TooLarge() if record.sealed is None else Finished(record.sealed)

    async def renew(self, mark: Mark, owner: str) -> bool:
        record = self._owned(mark, owner)
        if record is not None:
            self._records[_name(mark)] = replace(record, until=self._clock() + LEASE_S)
        return record is not None

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> bool:
        record = self._owned(mark, owner)
        if record is not None:
            until = self._clock() + KEEP_S
            self._records[_name(mark)] = replace(record, owner=None, sealed=sealed, until=until)
        return record is not None

    async def fail(self, mark: Mark, owner: str) -> bool:
        record = self._owned(mark, owner)
        if record is not None:
            del self._records[_name(mark)]
        return record is not None

    def _owned(self, mark: Mark, owner: str) -> _Record | None:
        record = self._records.get(_name(mark))
        is_owned = record is not None and record.owner == owner and record.until > self._clock()
        return record if is_owned else None

    def _drop_old(self, now: float) -> None:
        self._records = {name: record for name, record in self._records.items() if record.until > now}


def _name(mark: Mark) -> tuple[str, str]:
    return mark.tenant_id, mark.key_hash
