"""Finds reservations in Redis whose gateway is gone, and settles them.

A tenant is on the list of the watched from its first reserve on, with a time before which no lease of its
ends. Who reaps takes due tenants off the list, looks after them, and puts back those that have leases left.
A reserve puts its tenant on the list *after* its take: if that was on it still, whoever takes it off later
sees the lease.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenants.ledger import redis_messages as messages
from tenants.ledger.redis_calls import WATCHED_KEY, LedgerScripts, converted, prefix_of
from tenants.ledger.redis_messages import MAX_ENDED, Ended
from tenants.ledger.reservation import Reservation, Told, reaped
from tenants.ledger.settlement import Settlement
from tenants.store import CorruptRecord, StoreUnavailable

MAX_TENANTS = 1000
"""Taken off the list in one go."""
_NOT_DUE = 0


class RedisReaper:
    """Owns what it began and does not know to be done: an answer that was not heard loses nothing."""

    def __init__(self, scripts: LedgerScripts) -> None:
        self._scripts = scripts
        self._taken: set[str] = set()
        """Tenants that are off the list."""
        self._unsure: dict[str, Settlement] = {}
        """By request id."""
        self._trouble: StoreUnavailable | None = None

    async def reap(self) -> list[Settlement]:
        """What one tenant's keys hold stops nobody else's reaping; it is raised when nothing else is told."""
        self._trouble = None
        await self._take_tenants()
        ended = await self._ended()
        for tenant, found in ended.items():
            for row in found.reservations:
                settlement = self._settlement(tenant, found.now_us, *row)
                if settlement is not None:
                    self._unsure[settlement.request_id] = settlement
        settled = await self._settle()
        await self._put_back(ended)
        if self._trouble is not None and not settled:
            raise self._trouble
        return settled

    async def _take_tenants(self) -> None:
        (reply,) = await self._scripts.run([self._scripts.watched(MAX_TENANTS)])
        names = converted(self._scripts.checked(reply, WATCHED_KEY), list[bytes], WATCHED_KEY)
        self._taken |= {name.decode(errors="replace") for name in names}

    async def _ended(self) -> Mapping[str, Ended]:
        """Of each tenant that could be looked at."""
        tenants = sorted(self._taken)
        calls = [self._scripts.call("ended", tenant, {"most": MAX_ENDED}) for tenant in tenants]
        found: dict[str, Ended] = {}
        for tenant, reply in zip(tenants, await self._scripts.run(calls), strict=True):
            place = prefix_of(tenant)
            try:
                found[tenant] = converted(self._scripts.checked(reply, place), Ended, place)
            except StoreUnavailable as error:
                self._trouble = error
        return found

    def _settlement(
        self, tenant: str, now_us: int, packed: bytes, cached_tokens: int, completion_tokens: int
    ) -> Settlement | None:
        try:
            reservation = msgspec.json.decode(packed, type=Reservation)
        except (msgspec.DecodeError, RecursionError):
            self._trouble = CorruptRecord(f"a value under {prefix_of(tenant)}open is no Reservation")
            return None
        told = None if cached_tokens < 0 else Told(cached_tokens, completion_tokens)
        return reaped(reservation, told, now_us)

    async def _settle(self) -> list[Settlement]:
        """Those that were applied, now or by a call whose answer was not heard."""
        due = list(self._unsure.values())
        calls = [
            self._scripts.call("settle", one.tenant_id, messages.settle(one, by_reaper=True)) for one in due
        ]
        settled: list[Settlement] = []
        for one, reply in zip(due, await self._scripts.run(calls), strict=True):
            del self._unsure[one.request_id]
            try:
                if self._scripts.checked(reply, prefix_of(one.tenant_id)) != _NOT_DUE:
                    settled.append(one)
            except StoreUnavailable as error:
                self._trouble = error
        return settled

    async def _put_back(self, ended: Mapping[str, Ended]) -> None:
        """Raises nothing that would keep what was settled from being told."""
        calls = [
            self._scripts.watch(tenant, found.next_end_us)
            for tenant, found in ended.items()
            if found.next_end_us
        ]
        try:
            await self._scripts.run(calls)
        except StoreUnavailable as error:
            self._trouble = error
        else:
            self._taken.difference_update(ended)
