"""`/health` and `/ready`, the only routes without a key, and `/metrics`."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from cluster.api.auth import require
from cluster.api.described import BEHIND_DOOR, gives, refuses
from cluster.api.errors import ApiError
from cluster.api.services import Services

router = APIRouter(tags=["Service"])

READY_RETRY_S = 1.0


class Status(msgspec.Struct, frozen=True):
    status: str


@router.get("/health", responses={**gives(Status, "It does.", example={"status": "ok"}), **refuses(500)})
async def health() -> JSONResponse:
    """This process answers."""
    return JSONResponse({"status": "ok"})


@router.get(
    "/ready", responses={**gives(Status, "It can.", example={"status": "ready"}), **refuses(500, 503)}
)
async def ready(http: Request) -> JSONResponse:
    """A replica can serve; 503 until then, and while draining."""
    services: Services = http.app.state.services
    if not services.ready():
        message = "No replica can serve yet."
        raise ApiError(503, "not_ready", message, retry_after_s=READY_RETRY_S)
    return JSONResponse({"status": "ready"})


@router.get(
    "/metrics",
    dependencies=[Depends(require("metrics", "admin"))],
    response_class=PlainTextResponse,
    responses=refuses(*BEHIND_DOOR),
)
async def metrics(http: Request) -> Response:
    """Prometheus' text format: this gateway's counters, and the replicas' state as last told."""
    services: Services = http.app.state.services
    return Response(services.telemetry.render(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})
