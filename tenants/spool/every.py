"""Again and again, until it is cancelled; a failure is logged and ends nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("headrace.spool")


async def every(
    seconds: float,
    tick: Callable[[], Awaitable[None]],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    while True:
        try:
            await tick()
        except Exception:
            log.exception("housekeeping failed; it is tried again")
        await sleep(seconds)
