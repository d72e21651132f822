"""After Redis came back empty: what was spent this month, from the spools.

Replay goes on from a checkpoint and leaves out what is older than the ledger's tombstones, for that could
be charged twice. Here neither holds: an empty ledger has applied nothing and remembers nothing, so each
request of the month is applied once, however old, and corrections are resolved before. Run again within
the life of a tombstone it repeats harmlessly, as it does beside gateways that settle meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import date, timedelta
from itertools import islice
from pathlib import Path

from tenants.ledger.ledger import Ledger
from tenants.spool.reading import utc_day
from tenants.spool.record import Record

BATCH = 256


async def rebuild(
    base: Path,
    ledger: Ledger,
    now: float,
    on_progress: Callable[[int], None] = lambda num_settlements: None,
) -> int:
    """Applies all that began in the UTC month of `now` and is in a spool below `base`; how many requests.

    `on_progress` is told their number after each batch. Raises `StoreUnavailable`; begin again then.
    """
    month = utc_day(now)[:7]
    written_since = date.fromisoformat(f"{month}-01") - timedelta(days=1)  # clocks differ
    settlements = Record(base).settlements(written_since.isoformat())
    of_month = (one for one in settlements if utc_day(one.started_at)[:7] == month)
    num_applied = 0
    while batch := await asyncio.to_thread(lambda: list(islice(of_month, BATCH))):
        await ledger.settle(batch)
        num_applied += len(batch)
        on_progress(num_applied)
    return num_applied
