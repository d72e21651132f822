"""Finds reservations in Redis whose gateway is gone, and settles them.

A tenant is on the list of the watched from its first reserve on, with the time when it is to be looked at.
Who reaps takes the due ones: each is due again in 9 s, whatever becomes of the reaper. It comes off
when a look found nothing open. A reserve moves its tenant's time *after* its take, and what has moved stays
on the list: so if a look missed the take, the next one sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tenants.ledger import redis_messages as messages
from tenants.ledger.redis_calls import WATCHED_KEY, LedgerScripts, converted, prefix_of
from tenants.ledger.redis_messages import MAX_ENDED, Ended
from tenants.ledger.reservation import ReservedAsk, Told, reaped
from tenants.ledger.settlement import Settlement
from tenants.store import CorruptRecord, StoreUnavailable

MAX_TENANTS = 1000
"""Looked at in one go."""
_NOT_DUE = 0


class RedisReaper:
    """Owns what it began and does not know to be done: an answer that was not heard loses nothing."""

    def __init__(self, scripts: LedgerScripts) -> None:
        self._scripts = scripts
        self._unsure: dict[str, Settlement] = {}
        """By request id."""
        self._trouble: StoreUnavailable | None = None

    async def reap(self) -> list[Settlement]:
        """What one tenant's keys hold stops nobody else's reaping; it is raised when nothing else is told."""
        self._trouble = None
        again_us, tenants = await self._due()
        ended = await self._ended(tenants)
        for tenant, found in ended.items():
            for row in found.reservations:
                settlement = self._settlement(tenant, found.now_us, *row)
                if settlement is not None:
                    self._unsure[settlement.request_id] = settlement
        settled = await self._settle()
        await self._tell_looks(again_us, ended)
        if self._trouble is not None and not settled:
            raise self._trouble
        return settled

    async def _due(self) -> tuple[int, list[str]]:
        (reply,) = await self._scripts.run([self._scripts.watched(MAX_TENANTS)])
        checked = self._scripts.checked(reply, WATCHED_KEY)
        again_us, names = converted(checked, tuple[int, list[bytes]], WATCHED_KEY)
        return again_us, [name.decode(errors="replace") for name in names]

    async def _ended(self, tenants: Sequence[str]) -> Mapping[str, Ended]:
        """Of each tenant that could be looked at."""
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
            reservation = msgspec.json.decode(packed, type=ReservedAsk)
        except (msgspec.DecodeError, RecursionError):
            self._trouble = CorruptRecord(f"a value under {prefix_of(tenant)}open is no reservation")
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
            try:
                is_due = self._scripts.checked(reply, prefix_of(one.tenant_id)) != _NOT_DUE
            except StoreUnavailable as error:
                self._trouble = error
                if not isinstance(error, CorruptRecord):  # it was refused, and is tried again
                    continue
                is_due = False
            del self._unsure[one.request_id]
            if is_due:
                settled.append(one)
        return settled

    async def _tell_looks(self, again_us: int, ended: Mapping[str, Ended]) -> None:
        """Who had something to settle is looked at once more: it may not have been.

        Raises nothing that would keep what was settled from being told.
        """
        calls = [
            self._scripts.looked(tenant, again_us, found.next_end_us)
            for tenant, found in ended.items()
            if found.next_end_us or not found.reservations
        ]
        try:
            await self._scripts.run(calls)
        except StoreUnavailable as error:
            self._trouble = error
