"""A server that is nothing but uvicorn: what an event costs without Ray, gateway and engine.

`python -m loadtest.gateway_bench.plain_server PORT`
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from loadtest.gateway_bench.scripted import (
    ScriptedRequest,
    last_events,
    read_request,
    token_event,
    tokens_of,
)


async def _events(request: ScriptedRequest) -> AsyncIterator[bytes]:
    """Gives way after each event, as who waits for an engine does."""
    for text in tokens_of(request):
        yield token_event(text)
        await asyncio.sleep(0)
    yield last_events(request)


async def complete(http: Request) -> Response:
    return StreamingResponse(_events(read_request(await http.body())), media_type="text/event-stream")


def main() -> None:
    app = Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False)


if __name__ == "__main__":
    main()
