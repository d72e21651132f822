"""The operator's API of rolling updates. The launcher does the work; a gateway only asks and shows."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from cluster.api.admin import body_of, documented, services_of, store_errors
from cluster.api.admin_types import list_view
from cluster.api.auth import require
from cluster.api.rollout_types import NewRollout, rollout_view
from cluster.api.services import Services
from cluster.rollout.rollout import Rollout

router = APIRouter(prefix="/admin/v1", tags=["admin"], dependencies=[Depends(require("admin"))])
_new_rollout = body_of(NewRollout)


@router.post("/rollouts", status_code=202, openapi_extra=documented(NewRollout))
async def create_rollout(
    body: NewRollout = Depends(_new_rollout), services: Services = Depends(services_of)
) -> JSONResponse:
    """Asks for a rolling update of all replicas. 409 while another one is not over."""
    rollout = Rollout(
        rollout_id=f"ro-{secrets.token_hex(4)}",
        created_at=services.wall_clock(),
        model=body.model,
        revision=body.revision,
        num_golden=len(body.golden),
    )
    with store_errors():
        await services.rollouts.ask(rollout, body.golden)
    return JSONResponse(rollout_view(rollout), 202)


@router.get("/rollouts")
async def list_rollouts(services: Services = Depends(services_of)) -> JSONResponse:
    """The latest ones, the last first."""
    with store_errors():
        rollouts = await services.rollouts.list_all()
    return JSONResponse(list_view([rollout_view(rollout) for rollout in rollouts]))


@router.get("/rollouts/{rollout_id}")
async def get_rollout(rollout_id: str, services: Services = Depends(services_of)) -> JSONResponse:
    """How far one is: a line a step, and why it failed."""
    with store_errors():
        rollout = await services.rollouts.get(rollout_id)
    return JSONResponse(rollout_view(rollout))
