"""An answer that is made whether or not its client stays to read it, and remembered as it was said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from cluster.api.draft import Draft
from cluster.api.errors import ApiError
from cluster.api.outbox import Outbox
from cluster.api.sending import headers_of
from cluster.api.waiting import first_of
from tenants.outcomes.outcome import StoredOutcome

_KEPT_HEADERS = frozenset({"content-type", "cache-control", "x-accel-buffering"})


class Recording:
    """Owns what one answer has said so far. One task records, one response follows.

    An answer that is larger than `max_bytes` is not remembered: from then on it is made no faster than
    its client reads, and only as long as it does.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._said: list[bytes] = []
        self._outbox = Outbox(max_bytes)
        self._draft: Draft | None = None
        self._headers: dict[str, str] | None = None
        """As they were with the first piece."""
        self._has_begun = asyncio.Event()
        self._is_left = asyncio.Event()

    async def record(self, make: Callable[[], Awaitable[Draft]]) -> StoredOutcome | None:
        """To its end. None: it is too large. Raises `ApiError`."""
        draft = self._draft = await make()
        self._has_begun.set()
        async with aclosing(draft.pieces) as pieces:
            async for piece in pieces:
                if self._headers is None:
                    self._headers = headers_of(draft)
                self._remember(piece)
                self._outbox.put(piece)
                if self._is_too_large and not await self._is_read():
                    break
        assert self._headers is not None
        return None if self._is_too_large else StoredOutcome(_kept(self._headers), b"".join(self._said))

    def close(self, error: ApiError | None = None) -> None:
        """Nothing more comes."""
        self._outbox.close(error)
        self._has_begun.set()

    async def followed(self) -> Draft:
        """The answer for its client: leaving this one ends nothing. Raises `ApiError` if none was begun."""
        await self._has_begun.wait()
        draft = self._draft
        if draft is None:
            assert self._outbox.error is not None
            raise self._outbox.error
        return replace(draft, pieces=self._follow(), headers_now=lambda: self._headers or draft.headers_now())

    async def _follow(self) -> AsyncGenerator[bytes]:
        try:
            while (data := await self._outbox.take()) is not None:
                yield data
                self._outbox.sent(len(data))
            if self._outbox.error is not None:
                raise self._outbox.error
        finally:
            self._is_left.set()
            self._outbox.close()

    @property
    def _is_too_large(self) -> bool:
        return self._num_bytes > self._max_bytes

    def _remember(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        self._said.append(piece)
        if self._is_too_large:
            self._said.clear()

    async def _is_read(self) -> bool:
        if not self._outbox.has_room:
            await first_of(self._outbox.wait_for_room(), self._is_left.wait())
        return not self._is_left.is_set()


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that tell of the answer; a tenant's limits stand otherwise when it is sent again."""
    return {
        name: value
        for name, value in headers.items()
        if name in _KEPT_HEADERS or (name.startswith("x-headrace-") and name != "x-headrace-soft-limits")
    }
