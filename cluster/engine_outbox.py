"""Messages of the engine on their way to one gateway."""

from __future__ import annotations

import asyncio

MAX_UNREAD_MESSAGES = 4096
"""A gateway that reads no faster than this is treated as gone."""


class EngineOutbox:
    """Messages for one gateway. Lives on the event loop; `close` ends the reader."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_closed = False

    def put(self, message: bytes) -> None:
        if self._messages.qsize() >= MAX_UNREAD_MESSAGES:
            self.close()
        if not self.is_closed:
            self._messages.put_nowait(message)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._messages.put_nowait(None)

    async def get(self, timeout_s: float) -> bytes | None:
        """The next message, or None once closed. Raises TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            return await self._messages.get()
