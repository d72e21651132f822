"""After Redis came back empty: what was spent, topped up and reset this month, from the spools.

Replay goes on from a checkpoint and leaves out what is older than the ledger's tombstones, for that could
be charged twice. Here neither holds: an empty ledger has applied nothing and remembers nothing, so each
request and adjustment of the month is applied once, however old, and corrections are resolved before. Run
again within the life of a tombstone it repeats harmlessly, as it does beside gateways that settle meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import date, timedelta
from itertools import islice
from pathlib import Path

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ledger import Ledger
from tenants.ledger.settlement import Settlement
from tenants.spool.applier import apply_apart
from tenants.spool.line import began_at
from tenants.spool.reading import utc_day
from tenants.spool.record import SpoolRecord
from tenants.store import CorruptRecord, StoreUnavailable

BATCH = 256
PAUSES_S = (0.25, 0.5, 1.0, 2.0)
"""Between the tries of a batch: a month is not begun anew for one answer that came late."""

Sleep = Callable[[float], Awaitable[None]]


async def rebuild(base: Path, ledger: Ledger, now: float, sleep: Sleep = asyncio.sleep) -> int:
    """Applies all of the UTC month of `now` that is in a spool below `base`; how many lines.

    A request is of the month in which it began. One that the ledger refuses is logged and left out. Raises
    `StoreUnavailable` once a batch was tried often enough; begin again then.
    """
    month = utc_day(now)[:7]
    written_since = date.fromisoformat(f"{month}-01") - timedelta(days=1)  # clocks differ
    entries = SpoolRecord(base).entries(written_since.isoformat())
    of_month = (entry for entry in entries if utc_day(began_at(entry))[:7] == month)
    patient = _Patient(ledger, sleep)
    num_applied = 0
    while batch := await asyncio.to_thread(lambda: list(islice(of_month, BATCH))):
        num_applied += len(batch) - await apply_apart(patient, batch)
    return num_applied


class _Patient:
    """Tells a ledger that may be away for moments."""

    def __init__(self, ledger: Ledger, sleep: Sleep) -> None:
        self._ledger = ledger
        self._sleep = sleep

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await self._again_and_again(lambda: self._ledger.settle(settlements))

    async def adjust(self, adjustments: Sequence[Adjustment]) -> None:
        await self._again_and_again(lambda: self._ledger.adjust(adjustments))

    async def _again_and_again(self, tell: Callable[[], Awaitable[object]]) -> None:
        for pause_s in PAUSES_S:
            try:
                await tell()
                return
            except CorruptRecord:
                raise
            except StoreUnavailable:
                await self._sleep(pause_s)
        await tell()
