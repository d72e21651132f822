"""Outcomes that are not asked for while the breaker is open, and tell it when the store fails."""

from __future__ import annotations

from tenants.outcomes.outcome import Found, Kept, Mark, OutcomeStore
from tenants.record_health import RecordHealth


class GuardedOutcomes:
    """An `OutcomeStore`."""

    def __init__(self, store: OutcomeStore, health: RecordHealth) -> None:
        self._store = store
        self._health = health

    async def begin(self, mark: Mark, owner: str) -> Found:
        return await self._health.ask(lambda: self._store.begin(mark, owner))

    async def renew(self, mark: Mark, owner: str) -> bool:
        return await self._health.ask(lambda: self._store.renew(mark, owner))

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> Kept | None:
        return await self._health.ask(lambda: self._store.finish(mark, owner, sealed))

    async def fail(self, mark: Mark, owner: str) -> bool:
        return await self._health.ask(lambda: self._store.fail(mark, owner))
