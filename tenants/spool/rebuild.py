"""After Redis came back empty: what was spent this month, from the spools.

Replay goes on from a checkpoint and leaves out what is older than the ledger's tombstones, for that could
be charged twice. Here neither holds: an empty ledger has applied nothing and remembers nothing, so each
request of the month is applied once, however old, and corrections are resolved before. Run again within
the life of a tombstone it repeats harmlessly, as it does beside gateways that settle meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import date, timedelta
from itertools import islice
from pathlib import Path

from tenants.ledger.ledger import Ledger
from tenants.ledger.settlement import Settlement
from tenants.spool.applier import settle_apart
from tenants.spool.reading import utc_day
from tenants.spool.record import Record
from tenants.store import CorruptRecord, StoreUnavailable

BATCH = 256
PAUSES_S = (0.25, 0.5, 1.0, 2.0)
"""Between the tries of a batch: a month is not begun anew for one answer that came late."""


async def rebuild(
    base: Path, ledger: Ledger, now: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> int:
    """Applies all that began in the UTC month of `now` and is in a spool below `base`; how many requests.

    One that the ledger refuses is logged and left out. Raises `StoreUnavailable` once a batch was tried
    often enough; begin again then.
    """
    month = utc_day(now)[:7]
    written_since = date.fromisoformat(f"{month}-01") - timedelta(days=1)  # clocks differ
    settlements = Record(base).settlements(written_since.isoformat())
    of_month = (one for one in settlements if utc_day(one.started_at)[:7] == month)
    num_applied = 0
    while batch := await asyncio.to_thread(lambda: list(islice(of_month, BATCH))):
        num_refused = await settle_apart(lambda some: _settle(ledger, some, sleep), batch)
        num_applied += len(batch) - num_refused
    return num_applied


async def _settle(
    ledger: Ledger, batch: Sequence[Settlement], sleep: Callable[[float], Awaitable[None]]
) -> None:
    for pause_s in PAUSES_S:
        try:
            await ledger.settle(batch)
            return
        except CorruptRecord:
            raise
        except StoreUnavailable:
            await sleep(pause_s)
    await ledger.settle(batch)
