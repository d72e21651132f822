"""`/health` and `/ready`, the only routes without a key, and `/metrics`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from cluster.api.auth import require
from cluster.api.errors import ApiError
from cluster.api.services import Services

router = APIRouter(tags=["Service"])

READY_RETRY_S = 1.0


@router.get("/health")
async def health() -> JSONResponse:
    """This process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/ready")
async def ready(http: Request) -> JSONResponse:
    """A replica can serve; 503 until then, and while draining."""
    services: Services = http.app.state.services
    if not services.ready():
        message = "No replica can serve yet."
        raise ApiError(503, "not_ready", message, retry_after_s=READY_RETRY_S)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", dependencies=[Depends(require("metrics", "admin"))])
async def metrics(http: Request) -> Response:
    """Prometheus' text format: this gateway's counters, and the replicas' state as last told."""
    services: Services = http.app.state.services
    return Response(services.telemetry.render(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})
