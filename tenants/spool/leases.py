"""The leases of the requests that run in this gateway: told together, again and again, while they run."""

from __future__ import annotations

from collections.abc import Callable

from tenants.ledger.ledger import Ledger
from tenants.ledger.settlement import Progress
from tenants.store import StoreUnavailable


class Leases:
    """Owns which requests run here. `renew` is to be called every `RENEW_EVERY_S`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._running: dict[str, Callable[[], Progress]] = {}
        self.num_failed_renewals = 0

    def add(self, request_id: str, progress: Callable[[], Progress]) -> None:
        """`progress` tells at any time how far it is."""
        self._running[request_id] = progress

    def remove(self, request_id: str) -> None:
        """It has ended. Safe to repeat."""
        self._running.pop(request_id, None)

    async def renew(self) -> None:
        """One call for all. A failure is harmless: a lease outlives several renewals."""
        if not self._running:
            return
        try:
            await self._ledger.renew([progress() for progress in self._running.values()])
        except StoreUnavailable:
            self.num_failed_renewals += 1
