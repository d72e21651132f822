"""The eye on the record, in the background, so that no request is ever the probe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tenants.breaker import Breaker
from tenants.offline.fleet import GATEWAY_TTL_S, Fleet
from tenants.store import StoreUnavailable

log = logging.getLogger("headrace.record")


class Watch:
    """Owns what is known of the fleet. `tick` is to be called every `PROBE_EVERY_S`.

    `reseed` writes an empty record anew; it is not called while it runs. `clock` is that of the breaker.
    """

    def __init__(
        self,
        breaker: Breaker,
        fleet: Fleet,
        gateway_id: str,
        clock: Callable[[], float],
        reseed: Callable[[], Awaitable[None]],
    ) -> None:
        self._breaker = breaker
        self._fleet = fleet
        self._gateway_id = gateway_id
        self._clock = clock
        self._reseed = reseed
        self._reseeding: asyncio.Task[None] | None = None
        self.num_gateways = 1

    async def tick(self) -> None:
        try:
            beat = await self._fleet.beat(self._gateway_id)
        except StoreUnavailable as error:
            self._breaker.failed(error.trouble, self._clock())
            return
        if beat.is_whole:
            self._breaker.succeeded(self._clock())
            self._count(beat.num_gateways)
        else:
            self._breaker.failed("empty", self._clock())
            self._reseed_once()

    async def close(self) -> None:
        if self._reseeding is not None:
            self._reseeding.cancel()
            await asyncio.gather(self._reseeding, return_exceptions=True)
        with suppress(StoreUnavailable):
            await self._fleet.leave(self._gateway_id)

    def _count(self, num_gateways: int) -> None:
        """Right after an outage the others have not all beaten yet, and the last number counts."""
        is_settled = self._clock() - self._breaker.since >= GATEWAY_TTL_S
        self.num_gateways = num_gateways if is_settled else max(num_gateways, self.num_gateways)

    def _reseed_once(self) -> None:
        if self._reseeding is None or self._reseeding.done():
            self._reseeding = asyncio.ensure_future(self._try_to_reseed())

    async def _try_to_reseed(self) -> None:
        try:
            await self._reseed()
        except StoreUnavailable:
            return  # the next tick finds it still empty
        except Exception:
            log.exception("an empty record could not be written anew")
