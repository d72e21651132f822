"""A bound on waiting for another process, which is not blamed for the time in which this one stood still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def bounded(limit_s: float) -> AsyncIterator[None]:
    """`asyncio.timeout(limit_s)`, put off once by as much as the loop comes too late to see it.

    A loop that was kept from running, by a busy machine or by work of its own, finds an answer and the end of
    the wait for it at the same moment, and would take the end first.
    Raises TimeoutError.
    """
    loop = asyncio.get_running_loop()
    due = loop.time() + limit_s
    async with asyncio.timeout(None) as timeout:

        def end() -> None:
            now = loop.time()
            timeout.reschedule(now + (now - due))

        ending = loop.call_at(due, end)
        try:
            yield
        finally:
            ending.cancel()
