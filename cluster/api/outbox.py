"""Frames on their way to one client: made by one task, sent by another."""

from __future__ import annotations

import asyncio

from cluster.api.errors import ApiError


class Outbox:
    """Owns what is not sent yet. Bytes count as unsent until `sent` is called for them."""

    def __init__(self, max_unsent_bytes: int) -> None:
        self._max_unsent_bytes = max_unsent_bytes
        self._frames: list[bytes] = []
        self._unsent_bytes = 0
        self._is_closed = False
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.error: ApiError | None = None
        """Why it was closed; None if the answer is complete."""

    @property
    def has_room(self) -> bool:
        return self._unsent_bytes <= self._max_unsent_bytes

    async def wait_for_room(self) -> None:
        await self._room.wait()

    def put(self, frame: bytes) -> None:
        """After `close`, nothing is taken any more."""
        if self._is_closed:
            return
        self._frames.append(frame)
        self._unsent_bytes += len(frame)
        self._something.set()
        if not self.has_room:
            self._room.clear()

    def close(self, error: ApiError | None = None) -> None:
        """No more frames: the answer is complete, or ends with `error`. The first word counts."""
        if self._is_closed:
            return
        self._is_closed = True
        self.error = error
        self._something.set()

    async def take(self) -> bytes | None:
        """All frames that wait, as one; None when it is closed and empty."""
        await self._something.wait()
        if not self._frames:
            return None
        data = b"".join(self._frames)
        self._frames.clear()
        if not self._is_closed:
            self._something.clear()
        return data

    def sent(self, num_bytes: int) -> None:
        self._unsent_bytes -= num_bytes
        if self.has_room:
            self._room.set()
