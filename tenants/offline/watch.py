"""The eye on the record, in the background, so that no request is ever the probe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tenants.breaker import Breaker
from tenants.offline.membership import GATEWAY_TTL_S, Membership
from tenants.store import StoreUnavailable

log = logging.getLogger("headrace.record")


class Watch:
    """Owns what is known of the fleet. `tick` is to be called every `PROBE_EVERY_S`.

    `reopen` reserves in the record what runs here, and may raise `StoreUnavailable`; `reseed` writes an empty
    one anew, and is not called while it runs. `clock` is that of the breaker.
    """

    def __init__(
        self,
        breaker: Breaker,
        membership: Membership,
        gateway_id: str,
        clock: Callable[[], float],
        reopen: Callable[[], Awaitable[None]],
        reseed: Callable[[], Awaitable[None]],
    ) -> None:
        self._breaker = breaker
        self._membership = membership
        self._gateway_id = gateway_id
        self._clock = clock
        self._reopen = reopen
        self._reseed = reseed
        self._life: str | None = None
        """The epoch of the record that knows what ran here when it was seen first."""
        self._reseeding: asyncio.Task[None] | None = None
        self.num_gateways = 1

    async def tick(self) -> None:
        try:
            beat = await self._membership.beat(self._gateway_id)
            if beat.epoch is None:
                await self._meet_empty()
            else:
                await self._meet_whole(beat.epoch, beat.num_gateways)
        except StoreUnavailable as error:
            self._breaker.failed(error.trouble, self._clock())

    async def close(self) -> None:
        if self._reseeding is not None:
            self._reseeding.cancel()
            await asyncio.gather(self._reseeding, return_exceptions=True)
        with suppress(StoreUnavailable):
            await self._membership.leave(self._gateway_id)

    async def _meet_empty(self) -> None:
        """At every tick: an answer of the life before may have let something in just now."""
        self._breaker.failed("empty", self._clock())
        await self._reopen()
        await self._membership.reopened(self._gateway_id)
        self._reseed_once()

    async def _meet_whole(self, epoch: str, num_gateways: int) -> None:
        """Of another life than it knew it may not know what runs here: nobody waits for ever."""
        if epoch != self._life:
            await self._reopen()
            self._life = epoch
        self._breaker.succeeded(self._clock())
        self._count(num_gateways)

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
