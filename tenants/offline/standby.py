"""All that a gateway keeps for the time when it cannot ask the record. Its parts meet only here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tenants.breaker import PROBE_EVERY_S, Breaker
from tenants.ledger.ask import Ask
from tenants.ledger.grant import Granted, Refused, Standing
from tenants.ledger.ledger import RENEW_EVERY_S, Ledger
from tenants.ledger.settlement import Settlement
from tenants.ledger.windows import to_us
from tenants.offline.membership import Membership
from tenants.offline.offline_ledger import OfflineLedger
from tenants.offline.prepaid import Prepaid
from tenants.offline.watch import Watch
from tenants.record_health import RecordHealth
from tenants.store import Trouble
from tenants.terms import Terms

_TICKS_PER_RENEWAL = round(RENEW_EVERY_S / PROBE_EVERY_S)


class Means(NamedTuple):
    """What a gateway works with. `clock` is steady, `wall_clock` Unix time, both in seconds."""

    gateway_id: str
    ledger: Ledger
    """The record's; asked by nobody while `health.trouble` says so, but by this."""
    membership: Membership
    settle: Callable[[Settlement], Awaitable[None]]
    """Writes to the spool and applies in that order. May raise `OSError`."""
    reopen: Callable[[], Awaitable[None]]
    """Reserves what runs here in a record that has forgotten it; what has ended is in the spool then. May
    raise `StoreUnavailable`."""
    reseed: Callable[[], Awaitable[None]]
    """Writes an empty record anew, if nobody else does. May raise `StoreUnavailable`."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    new_id: Callable[[], str]
    """An id of a reservation."""


class Standby:
    """Owns the breaker of this process, and who else lives, and what is let in while the record is away.

    `on_change(trouble)` is called when the record goes away, when its trouble changes, and with None when it
    is back.
    """

    def __init__(
        self, means: Means, on_change: Callable[[Trouble | None], None] = lambda trouble: None
    ) -> None:
        self._on_change = on_change
        breaker = Breaker(self._changed)
        self.health = RecordHealth(breaker, means.clock)
        self._reopen_requests = means.reopen
        self._watch = Watch(
            breaker, means.membership, means.gateway_id, means.clock, self._reopen, means.reseed
        )
        self._prepaid = Prepaid(means.ledger, means.settle, means.clock, means.wall_clock, means.new_id)
        self._offline = OfflineLedger(
            self._prepaid, lambda: self._watch.num_gateways, lambda: to_us(means.wall_clock())
        )
        self._num_ticks = 0

    @property
    def num_gateways(self) -> int:
        """That live, as known last."""
        return self._watch.num_gateways

    @property
    def amount_held(self) -> int:
        """Micro-units in purses."""
        return self._prepaid.amount_held

    async def reserve(self, ask: Ask, terms: Terms) -> Granted | Refused:
        """In the record's stead. Raises `StoreUnavailable` for who is not served without it."""
        return await self._offline.reserve(ask, terms)

    def saw(self, ask: Ask, terms: Terms, standing: Standing) -> None:
        """The record answered `ask`."""
        if terms.offline == "serve":
            self._prepaid.saw(ask, standing)

    def ended(self, settlement: Settlement) -> None:
        """A request was settled, whoever had let it in."""
        self._offline.ended(settlement)

    async def tick(self) -> None:
        """To be called every `PROBE_EVERY_S`."""
        await self._watch.tick()
        self._num_ticks += 1
        if self._num_ticks % _TICKS_PER_RENEWAL:
            return
        if self.health.trouble is None:
            await self._prepaid.tick()
        else:
            await self._offline.tick()

    async def close(self) -> None:
        """Gives back what is in no use. Requests that run from a purse keep it until its lease ends."""
        await self._prepaid.close()
        await self._watch.close()

    async def _reopen(self) -> None:
        """Purses too. What runs on one counts twice until it ends: never too little."""
        await self._reopen_requests()
        await self._prepaid.reopen()

    def _changed(self, trouble: Trouble | None) -> None:
        if trouble is None:
            self._offline.record_is_back()
        self._on_change(trouble)
