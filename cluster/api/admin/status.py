"""`/admin/v1/status`: how the cluster stands."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import Depends, Response

from cluster.api.admin import examples
from cluster.api.admin.answers import shown
from cluster.api.admin.door import admin_router, services_of
from cluster.api.admin.store_errors import store_errors
from cluster.api.described import BEHIND_DOOR, gives, refuses
from cluster.api.services import Services
from cluster.autoscaling.view import ClusterStatus

router = admin_router("/status")


class StatusView(ClusterStatus, frozen=True):
    object: Literal["status"] = "status"


@router.get(
    "",
    responses={
        **gives(StatusView, "As the launcher told it within the last seconds.", example=examples.STATUS),
        **refuses(400, *BEHIND_DOOR),
    },
)
async def get_status(services: Services = Depends(services_of)) -> Response:
    """Replicas by state and when those on their way will serve; demand, capacity, headroom, cold start.

    Rates are in tokens of service a second: an uncached input token counts 1, a cached one 0.1, an output
    token 1. 503 if the launcher tells nothing.
    """
    with store_errors():
        status = await services.status.status()
    return shown(StatusView(**msgspec.structs.asdict(status)))
