"""The design that headrace does not have: each request is a Ray stream of its own, an item a token.

A minimal Serve application, to compare with: no keys, no limits, no text to cut, no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from ray import serve
from ray.serve.handle import DeploymentHandle

from loadtest.gateway_bench.scripted import last_events, read_request, token_event, tokens_of

_MAX_ONGOING = 10_000


class Scripted:
    """The replica: a token every `step_s` for each request."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    async def generate(self, body: bytes) -> AsyncIterator[str]:
        for text in tokens_of(read_request(body)):
            await asyncio.sleep(self._step_s)
            yield text


@serve.ingress()
class Ingress:
    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas.options(stream=True)

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/completions", self.complete, methods=["POST"], response_model=None)
        app.add_api_route("/ready", self.ready, response_model=None)
        return app

    async def complete(self, http: Request) -> StreamingResponse:
        return StreamingResponse(self._events(await http.body()), media_type="text/event-stream")

    async def ready(self) -> Response:
        return Response()

    async def _events(self, body: bytes) -> AsyncIterator[bytes]:
        async for text in self._replicas.generate.remote(body):
            yield token_event(text)
        yield last_events(read_request(body))


def build(step_s: float, num_replicas: int) -> serve.Application:
    common = {"max_ongoing_requests": _MAX_ONGOING, "ray_actor_options": {"num_cpus": 0.1}}
    replicas = serve.deployment(Scripted, num_replicas=num_replicas, **common).bind(step_s)
    return serve.deployment(Ingress, **common).bind(replicas)
