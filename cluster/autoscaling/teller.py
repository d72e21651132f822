"""A gateway's part in scaling: each second it tells what is asked of it and hears how the cluster stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cluster.autoscaling.demand import GatewayDemand
from cluster.autoscaling.view import ClusterStatus
from tenants.store import StoreUnavailable

log = logging.getLogger("headrace.scaling")

TELL_EVERY_S = 1.0
FORGET_AFTER_S = 10.0
"""What the launcher has not told for so long is not so any more."""


class Tells(Protocol):
    async def tell(self, gateway_id: str, demand: GatewayDemand) -> ClusterStatus | None: ...


class DemandTeller:
    """Owns what this gateway heard last. `row()` is its demand now; `clock` is monotonic, in seconds."""

    def __init__(
        self, store: Tells, gateway_id: str, row: Callable[[], GatewayDemand], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._gateway_id = gateway_id
        self._row = row
        self._clock = clock
        self._heard: ClusterStatus | None = None
        self._heard_at = 0.0
        self._is_away = False

    @property
    def latest(self) -> ClusterStatus | None:
        """None: nothing was heard of late."""
        return self._heard if self._clock() - self._heard_at <= FORGET_AFTER_S else None

    async def tell(self) -> None:
        """Never raises: what was not told now is in the totals of the next time."""
        try:
            heard = await self._store.tell(self._gateway_id, self._row())
        except StoreUnavailable as error:
            if not self._is_away:
                log.warning("demand could not be told: %s", error)
            self._is_away = True
            return
        self._is_away = False
        if heard is not None:
            self._heard, self._heard_at = heard, self._clock()

    async def run(self) -> None:
        while True:
            await self.tell()
            await asyncio.sleep(TELL_EVERY_S)
