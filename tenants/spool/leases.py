"""The leases of the requests that run in this gateway: told together, again and again, while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tenants.ledger.ledger import Ledger
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress
from tenants.store import StoreUnavailable


class _Running(NamedTuple):
    held: Held
    progress: Callable[[], Progress]


class Leases:
    """Owns which requests run here. `renew` is to be called every `RENEW_EVERY_S`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._running: dict[str, _Running] = {}
        self.num_failed_renewals = 0

    def add(self, held: Held, progress: Callable[[], Progress]) -> None:
        """`progress` tells at any time how far it is."""
        self._running[held.ask.request_id] = _Running(held, progress)

    def remove(self, request_id: str) -> None:
        """It has ended. Safe to repeat."""
        self._running.pop(request_id, None)

    async def renew(self) -> None:
        """One call for all. A failure is harmless: a lease outlives several renewals."""
        if not self._running:
            return
        try:
            await self._ledger.renew([running.progress() for running in self._running.values()])
        except StoreUnavailable:
            self.num_failed_renewals += 1

    async def reopen(self) -> None:
        """Reserves all of them again, in a record that may have forgotten them. Raises `StoreUnavailable`."""
        await self._ledger.reopen([running.held for running in self._running.values()])
