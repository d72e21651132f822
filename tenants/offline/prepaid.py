"""The purses of this gateway: taken and renewed while the record answers, spent from while it does not.

What a purse holds is reserved in the record until all that was spent from it is charged: it is given back
only once the last request that it pays for was settled, behind that settlement in the spool. A record that
came back empty is told of it anew before it is whole. So requests of an outage never spend more than was
theirs, unless the record lost the reservation itself (it came back as a replica that lagged), or the outage
was longer than `PURSE_LEASE_S` for this gateway alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from tenants.ledger.ask import Ask
from tenants.ledger.grant import Granted, Standing
from tenants.ledger.ledger import Ledger
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress, Settlement
from tenants.offline.customers import Customers
from tenants.offline.purse import GOOD_FOR_S, Holder, Purse, given_back, holder_of
from tenants.store import StoreUnavailable


@dataclass
class _Held:
    purse: Purse
    good_until: float = 0.0
    """By the steady clock; nothing before its first renewal."""
    num_running: int = 0
    """Requests that it pays for."""
    was_used: bool = False
    is_done: bool = False
    """A tick ago nothing ran on it any more: what it paid for is in the spool."""


class Prepaid:
    """Owns this gateway's purses.

    `settle` writes to the spool and applies in order; `clock` is steady, `wall_clock` Unix time, both in
    seconds; `new_id` makes ids of reservations.
    """

    def __init__(
        self,
        ledger: Ledger,
        settle: Callable[[Settlement], Awaitable[None]],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._ledger = ledger
        self._settle = settle
        self._clock = clock
        self._wall_clock = wall_clock
        self._customers = Customers(new_id)
        self._held: dict[Holder, _Held] = {}
        self._closing: list[_Held] = []
        """Nothing more is spent from these."""
        self._payers: dict[str, _Held] = {}
        """By request, while it runs."""

    @property
    def amount_held(self) -> int:
        """Micro-units, those of purses that wait for their last request among them."""
        return sum(held.purse.amount for held in (*self._held.values(), *self._closing))

    def saw(self, ask: Ask, standing: Standing) -> None:
        """The record answered a request of this gateway."""
        self._customers.saw(ask, standing)

    def purse_for(self, ask: Ask) -> Purse | None:
        """The one that may pay for it now."""
        holder = holder_of(ask)
        held = None if holder is None else self._held.get(holder)
        if held is None or self._clock() >= held.good_until or not held.purse.pays_at(ask.started_at):
            return None
        return held.purse

    def spends(self, purse: Purse, request_id: str) -> None:
        held = self._held[purse.holder]
        held.num_running += 1
        held.was_used = True
        self._payers[request_id] = held

    def ended(self, request_id: str) -> None:
        """Its settlement is on its way to the spool."""
        held = self._payers.pop(request_id, None)
        if held is not None:
            held.num_running -= 1

    def close_all(self) -> None:
        """The record is back: it is not known what it still has of these."""
        self._closing.extend(self._held.values())
        self._held.clear()

    async def reopen(self) -> None:
        """Reserves all purses in a record that may have forgotten them. Raises `StoreUnavailable`."""
        purses = [held.purse for held in (*self._held.values(), *self._closing)]
        await self._ledger.reopen([Held(purse.ask, purse.amount) for purse in purses])
        await self._renew()

    async def tick(self) -> None:
        """To be called every `RENEW_EVERY_S` while the record answers. What fails is tried again."""
        plan = self._customers.next_tick(self._purses(), self._wall_clock())
        self._closing.extend(self._held.pop(holder) for holder in plan.give_back)
        await self._give_back()
        try:
            for ask in plan.take:
                await self._take(ask)
            await self._renew()
        except StoreUnavailable:
            return

    async def close(self) -> None:
        """Gives back all that nothing runs on."""
        self.close_all()
        for held in self._closing:
            held.is_done = held.num_running == 0
        await self._give_back()

    def _purses(self) -> dict[Holder, Purse]:
        return {holder: held.purse for holder, held in self._held.items()}

    async def _give_back(self) -> None:
        done = [held for held in self._closing if held.is_done or not held.was_used]
        for held in self._closing:
            held.is_done = held.num_running == 0
        for held in done:
            with suppress(OSError):  # the settler tells, and writes it later
                await self._settle(given_back(held.purse.ask, self._wall_clock()))
            self._closing.remove(held)

    async def _take(self, ask: Ask) -> None:
        """A grant that is not heard ends with its first, short lease."""
        if isinstance(await self._ledger.reserve(ask), Granted):
            holder = holder_of(ask)
            assert holder is not None
            self._held[holder] = _Held(Purse(holder, ask))

    async def _renew(self) -> None:
        asked_at = self._clock()
        all_held = [*self._held.values(), *self._closing]
        purses = [held.purse for held in all_held]
        await self._ledger.renew([Progress(purse.ask.tenant_id, purse.purse_id, 0, 0) for purse in purses])
        for held in all_held:
            held.good_until = asked_at + GOOD_FOR_S
