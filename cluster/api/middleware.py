"""Around every request: its id, the bound of its body, its count, and what happens if we fail."""

from __future__ import annotations

import re
from uuid import uuid4

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.errors import ApiError, internal_error
from cluster.api.services import Services
from cluster.api.unexpected import log_unexpected
from cluster.api.waiting import unless

_ECHOABLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,126}[\x21-\x7e])?")
CLIENT_CLOSED = 499

_CLOSE = {"connection": "close"}  # the rest of the body is on its way and nobody will read it


class RequestMiddleware:
    """Pure ASGI: it passes streams and disconnects on as they are, and lets no exception out."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        response = _Response(send, _shown_id(Headers(scope=scope).get("x-request-id"), request_id))
        body = BoundedBody(receive, Headers(scope=scope).get("content-length"), self._services)
        telemetry = self._services.telemetry
        with telemetry.in_flight():
            try:
                await self._app(scope, body.receive, response.send)
            except ClientDisconnect:
                response.status = CLIENT_CLOSED
            except Exception as error:
                log_unexpected(error, request_id)
                await self._fail(scope, receive, response)
            finally:
                telemetry.count_request(response.status, getattr(scope.get("route"), "path", None))

    async def _fail(self, scope: Scope, receive: Receive, response: _Response) -> None:
        """A status if none was sent; else the server closes the connection on an unfinished answer."""
        if not response.has_started:
            answer = JSONResponse(internal_error().body(), 500)
            await answer(scope, receive, response.send)
        response.status = 500


class _Response:
    """Adds the id to an answer's headers and remembers its status."""

    def __init__(self, send: Send, shown_id: str) -> None:
        self._send = send
        self._shown_id = shown_id
        self.has_started = False
        self.status = CLIENT_CLOSED

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._shown_id
        await self._send(message)


class BoundedBody:
    """A `receive` that reads no more than the limit, in bytes and in time, whatever the client claims.

    Raises `ApiError` 413 or 408.
    """

    def __init__(self, receive: Receive, content_length: str | None, services: Services) -> None:
        self._receive = receive
        self._claimed_bytes = _bytes_claimed(content_length)
        self._services = services
        self._max_bytes = services.timings.max_body_bytes
        self._num_bytes = 0
        self._until: float | None = None
        self._is_complete = False

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        if self._claimed_bytes > self._max_bytes:
            raise self._too_large()
        message = await unless(self._receive(), (self._services.sleep(self._remaining_s()), _too_late()))
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._max_bytes:
            raise self._too_large()
        self._is_complete = not message.get("more_body", False)
        return message

    def _remaining_s(self) -> float:
        now = self._services.clock()
        if self._until is None:
            self._until = now + self._services.timings.body_s
        return max(0.0, self._until - now)

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self._max_bytes} bytes."
        return ApiError(413, "body_too_large", message, headers=_CLOSE)


def _bytes_claimed(content_length: str | None) -> int:
    """What the header says, as far as it is a number; 19 digits are too many bytes already."""
    return int(content_length[:19]) if content_length and content_length.isdecimal() else 0


def _too_late() -> ApiError:
    return ApiError(408, "body_timeout", "The body did not arrive in time.", headers=_CLOSE)


def _shown_id(asked: str | None, own: str) -> str:
    """The client's id if it is short and printable, else the server's own."""
    return asked if asked is not None and _ECHOABLE.fullmatch(asked) else own
