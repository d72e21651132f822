"""What a gateway looks up in the record again and again; a look that failed is made up for by the next."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tenants.record_health import RecordHealth
from tenants.store import StoreUnavailable

log = logging.getLogger("headrace.record")


class RecordLooks:
    """Owns how many looks failed, and which kinds of failure the log has told of."""

    def __init__(self, health: RecordHealth) -> None:
        self._health = health
        self._told: set[object] = set()
        self.num_failed = 0

    async def look(self, what: Callable[[], Awaitable[object]]) -> None:
        """Does `what`, unless the record is known to be in trouble. The record or the disk may fail it."""
        if self._health.trouble is not None:
            return
        try:
            await what()
        except (StoreUnavailable, OSError) as error:
            self.num_failed += 1
            kind = (type(error), error.trouble if isinstance(error, StoreUnavailable) else error.errno)
            if kind not in self._told:
                self._told.add(kind)
                log.warning("a look at the record failed, and is tried again: %s", error)
