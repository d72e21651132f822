"""This gateway's reservations: held while their requests run, booked when they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cluster.reservation import Reservation
from tenants.ledger.ask import Ask
from tenants.ledger.grant import Granted
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress, Settlement

log = logging.getLogger("headrace.gateway")

NOTHING_WAS_TAKEN = Granted(max_tokens=0, reserved_cost=0)


class Leases(Protocol):
    def add(self, held: Held, progress: Callable[[], Progress]) -> None: ...

    def remove(self, request_id: str) -> None: ...

    async def reopen(self) -> None: ...


class Settles(Protocol):
    async def settle(self, settlement: Settlement) -> None:
        """Returns once it is on disk. Raises `OSError` if it can't be."""


class Books:
    """Owns the tasks that book; `on_settled` hears of each settlement as it is made."""

    def __init__(
        self,
        leases: Leases,
        settler: Settles,
        wall_clock: Callable[[], float],
        on_settled: Callable[[Settlement], None] = lambda settlement: None,
    ) -> None:
        self._leases = leases
        self._settler = settler
        self._wall_clock = wall_clock
        self._on_settled = on_settled
        self._booking: set[asyncio.Task[None]] = set()

    def open(self, ask: Ask, granted: Granted) -> Reservation:
        reservation = Reservation(ask, granted, self, self._wall_clock)
        self._leases.add(Held(ask, granted.reserved_cost), reservation.progress)
        return reservation

    def give_back(self, ask: Ask) -> None:
        """Whatever it may have taken: nobody heard the ledger's answer."""
        Reservation(ask, NOTHING_WAS_TAKEN, self, self._wall_clock).settle("unserved")

    def settled(self, settlement: Settlement) -> None:
        self._leases.remove(settlement.request_id)
        self._on_settled(settlement)
        task = asyncio.ensure_future(self._book(settlement))
        self._booking.add(task)
        task.add_done_callback(self._booking.discard)

    async def reopen(self) -> None:
        """Reserves again what runs, in a record that may have forgotten it; what has ended is on disk then.

        So who reads the spools after it knows all that was granted here. Raises `StoreUnavailable`.
        """
        ending = list(self._booking)
        await self._leases.reopen()
        if ending:
            await asyncio.wait(ending)

    async def close(self) -> None:
        """Returns once all that was settled is on disk."""
        await asyncio.gather(*self._booking)

    async def _book(self, settlement: Settlement) -> None:
        try:
            await self._settler.settle(settlement)
        except OSError as error:  # told by metrics too: the ledger has it, the disk has not
            log.error("a settlement could not be written to the spool: %s", error.strerror)
