"""The operator's API of rolling updates. The launcher does the work; a gateway only asks and shows."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Depends, Path, Response

from cluster.api.admin.answers import shown
from cluster.api.admin.documents import BODY
from cluster.api.admin.door import Caller, admin_router, services_of
from cluster.api.admin.store_errors import store_errors
from cluster.api.described import BEHIND_DOOR, documented, gives, refuses
from cluster.api.reading import body_of
from cluster.api.rollout_types import EXAMPLE, NewRollout, RolloutList, RolloutView, rollout_view
from cluster.api.services import Services
from cluster.rollout.rollout import Rollout

router = admin_router("/rollouts")


@router.post(
    "",
    status_code=202,
    openapi_extra=documented(NewRollout, {"model": "org/model", "revision": "0123abcd"}),
    responses={
        **gives(RolloutView, "The launcher will begin.", status=202, example=EXAMPLE),
        **refuses(*BODY, 409, *BEHIND_DOOR),
    },
)
async def create_rollout(
    caller: Caller,
    body: Annotated[NewRollout, Depends(body_of(NewRollout))],
    services: Services = Depends(services_of),
) -> Response:
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
    return shown(rollout_view(rollout), 202)


@router.get(
    "",
    responses={**gives(RolloutList, "The last first."), **refuses(400, *BEHIND_DOOR)},
)
async def list_rollouts(services: Services = Depends(services_of)) -> Response:
    """The latest ones, the last first."""
    with store_errors():
        rollouts = await services.rollouts.list_all()
    return shown(RolloutList(data=tuple(map(rollout_view, rollouts))))


@router.get(
    "/{rollout_id}",
    responses={**gives(RolloutView, "As it stands.", example=EXAMPLE), **refuses(400, 404, *BEHIND_DOOR)},
)
async def get_rollout(
    rollout_id: Annotated[str, Path(max_length=64, examples=["ro-0123abcd"])],
    services: Services = Depends(services_of),
) -> Response:
    """How far one is: a line a step, and why it failed."""
    with store_errors():
        rollout = await services.rollouts.get(rollout_id)
    return shown(rollout_view(rollout))
