"""`GET /v1/usage`: what the caller's own tenant used."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from cluster.api.auth import require, store_unavailable
from cluster.api.described import BEHIND_DOOR, gives, refuses
from cluster.api.reading import each_once
from cluster.api.services import Services
from cluster.api.usage_query import UsageQuery
from cluster.api.usage_views import EXAMPLE, UsageView, usage_view
from tenants.ledger.usage import grouped
from tenants.store import Account, StoreUnavailable

_tenant = require("inference", "admin")

router = APIRouter(tags=["Usage"], dependencies=[Depends(_tenant), Depends(each_once)])


@router.get(
    "/v1/usage",
    responses={
        **gives(UsageView, "Rows by day, model and key.", example=EXAMPLE),
        **refuses(400, *BEHIND_DOOR),
    },
)
async def get_own_usage(
    http: Request,
    query: Annotated[UsageQuery, Query()],
    caller: Account = Depends(_tenant),
) -> Response:
    """What the key's tenant used, with all its keys. `cost` is in micro-units."""
    services: Services = http.app.state.services
    days = query.days(services.wall_clock())
    try:
        rows = await services.ledger.usage(caller.tenant.tenant_id, *days)
    except StoreUnavailable:
        raise store_unavailable() from None
    view = usage_view(days, grouped(rows, query.dimensions))
    return Response(msgspec.json.encode(view), media_type="application/json")
