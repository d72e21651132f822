"""Around Ray Serve's HTTP server in a gateway: what clients may tell it, and the one request id of an answer.

Serve obeys headers that are not for clients: one switches off that it sees them leave. And it appends
the request id that it was told, unchecked, to answers that have ours.
"""

from __future__ import annotations

from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.middleware import REQUEST_ID, shown_id

HEALTH_PATH = "/-/healthz"
"""Where Ray's proxies ask whether they may send requests here."""


class Readiness:
    """Whether this process may be sent new requests. The gateway owns it."""

    def __init__(self) -> None:
        self.is_ready = True


READINESS = Readiness()
"""This process' one: Serve makes the server around the gateway, and tells neither of the other."""

_SERVE_ONLY = {
    "x-request-disconnect-disabled",
    "x-request-timeout-seconds",
    "x-session-id",
    "serve-multiplexed-model-id",
}
"""With `-` for `_`, as Serve reads them."""


def middlewares() -> list[Middleware]:
    """Ray Serve calls it in each process that serves HTTP (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`)."""
    return [Middleware(Edge)]


class Edge:
    """Pure ASGI, outside of Serve's own middleware."""

    def __init__(self, app: ASGIApp, readiness: Readiness = READINESS) -> None:
        self._app = app
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == HEALTH_PATH and not self._readiness.is_ready:
            await PlainTextResponse("leaving", status_code=503)(scope, receive, send)
            return
        headers = MutableHeaders(scope=scope)
        for name in {name for name in headers if name.replace("_", "-") in _SERVE_ONLY}:
            del headers[name]
        own = uuid4().hex
        scope.setdefault("state", {})["request_id"] = own
        headers[REQUEST_ID] = shown_id(headers.get(REQUEST_ID), own)

        async def send_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer[REQUEST_ID] = answer.get(REQUEST_ID, own)  # the first; it replaces all
            await send(message)

        await self._app(scope, receive, send_one_id)
