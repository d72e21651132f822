"""How an answer goes out: whole, or as an event stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from cluster.api.draft import Draft
from cluster.api.errors import deadline_exceeded
from cluster.api.request_context import RequestContext
from cluster.api.sse import SSE_HEADERS, SseResponse
from cluster.api.waiting import client_left, unless

_JSON_HEADERS = {"content-type": "application/json"}


async def send(http: Request, context: RequestContext, draft: Draft) -> Response:
    """The response. Raises `ApiError`, and `ClientDisconnect` for a client that left before its answer."""
    if draft.is_stream:
        return SseResponse(context, draft.pieces, draft.headers_now)
    body = await unless(
        _joined(draft.pieces),
        (client_left(http.receive), ClientDisconnect()),
        (context.services.sleep(context.remaining_s), deadline_exceeded()),
    )
    return Response(body, headers=headers_of(draft))


def headers_of(draft: Draft) -> dict[str, str]:
    """All that go out with it, as they are by now."""
    return {**(SSE_HEADERS if draft.is_stream else _JSON_HEADERS), **draft.headers_now()}


async def _joined(pieces: AsyncGenerator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])
