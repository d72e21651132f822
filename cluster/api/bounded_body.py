"""A request's body, read no further than its limits in bytes and time, whatever the client claims."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from cluster.api.errors import ApiError
from cluster.api.services import Services
from cluster.api.waiting import unless

DROP_FACTOR = 4
"""A body too large is still read, and dropped, up to this many times the limit: a client that sends
on while the connection is closed would meet a reset instead of the answer."""


class BoundedBody:
    """Wraps one request's `receive`. Raises `ApiError` 413 or 408 from it."""

    def __init__(self, receive: Receive, headers: Headers, services: Services) -> None:
        self._receive = receive
        self._services = services
        self._max_bytes = services.timings.max_body_bytes
        self._claimed_bytes = _bytes_claimed(headers.get("content-length"))
        self._waits_for_leave = "expect" in headers
        self._num_bytes = 0
        self._until: float | None = None
        self._is_complete = False

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        if self._claimed_bytes > self._max_bytes:
            raise await self._too_large()
        message = await self._next()
        if self._num_bytes > self._max_bytes:
            raise await self._too_large()
        return message

    async def _next(self) -> Message:
        message = await unless(self._receive(), (self._services.sleep(self._remaining_s()), _too_late()))
        self._num_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        return message

    def _remaining_s(self) -> float:
        now = self._services.clock()
        if self._until is None:
            self._until = now + self._services.timings.body_s
        return max(0.0, self._until - now)

    async def _too_large(self) -> ApiError:
        most = DROP_FACTOR * self._max_bytes
        if not self._waits_for_leave and self._claimed_bytes <= most:
            while not self._is_complete and self._num_bytes <= most:
                await self._next()
        message = f"The body is larger than {self._max_bytes} bytes."
        headers = {} if self._is_complete else {"connection": "close"}
        return ApiError(413, "body_too_large", message, headers=headers)


def _bytes_claimed(content_length: str | None) -> int:
    """What the header says, as far as it is a number; 19 digits are too many bytes already."""
    return int(content_length[:19]) if content_length and content_length.isdecimal() else 0


def _too_late() -> ApiError:
    message = "The body did not arrive in time."
    return ApiError(408, "body_timeout", message, headers={"connection": "close"})
