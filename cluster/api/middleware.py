"""Around every request: its id, its count, and what happens if we fail."""

from __future__ import annotations

import re
from uuid import uuid4

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.bounded_body import BoundedBody
from cluster.api.errors import internal_error
from cluster.api.services import Services
from cluster.api.unexpected import log_unexpected

REQUEST_ID = "x-request-id"
_ECHOABLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,126}[\x21-\x7e])?")
CLIENT_CLOSED = 499


class RequestMiddleware:
    """Pure ASGI: it passes streams and disconnects on as they are, and lets no exception out."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope.setdefault("state", {}).setdefault("request_id", uuid4().hex)
        response = _Response(send, shown_id(Headers(scope=scope).get(REQUEST_ID), request_id))
        body = BoundedBody(receive, Headers(scope=scope), self._services)
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
            MutableHeaders(scope=message)[REQUEST_ID] = self._shown_id
        await self._send(message)


def shown_id(asked: str | None, own: str) -> str:
    """The client's id if it is short and printable, else the server's own."""
    return asked if asked is not None and _ECHOABLE.fullmatch(asked) else own
