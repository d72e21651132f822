"""A gateway's disk and the ledger behind it, as the admin API meets them when a budget is adjusted."""

from __future__ import annotations

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ledger import Ledger
from tenants.store import StoreUnavailable


class FakeSpool:
    """Stands for `Settler`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.written: list[Adjustment] = []
        self.fault: OSError | None = None
        self.is_ledger_away = False

    async def adjust(self, adjustment: Adjustment) -> None:
        if self.fault is not None:
            raise self.fault
        self.written.append(adjustment)
        if self.is_ledger_away:
            raise StoreUnavailable
        await self._ledger.adjust([adjustment])
