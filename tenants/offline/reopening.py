"""Before an empty record is called whole: all that runs anywhere is to be reserved in it again.

Money that was granted to running requests is in no spool yet. A record that did not know of it would grant it
a second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tenants.ledger.ledger import LEASE_S
from tenants.offline.membership import Membership
from tenants.reseed import LOOK_EVERY_S

log = logging.getLogger("headrace.record")


async def all_reopened(
    membership: Membership, num_gateways: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Returns once every gateway has told the record what runs in it; `num_gateways`: so many there were.

    One that is not heard of for `LEASE_S` is given up, as its leases would be. Raises `StoreUnavailable`.
    """
    for _ in range(round(LEASE_S / LOOK_EVERY_S)):
        num_missing = await membership.num_missing(num_gateways)
        if num_missing <= 0:
            return
        await sleep(LOOK_EVERY_S)
    log.warning("%d gateways did not tell an empty record what runs in them", num_missing)
