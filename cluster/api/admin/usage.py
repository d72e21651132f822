"""`/admin/v1/usage`: what one tenant used, or all of them, in pages by tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Response
from pydantic import Field

from cluster.api.admin.answers import shown
from cluster.api.admin.bodies import Id
from cluster.api.admin.changes import found
from cluster.api.admin.door import admin_router, services_of
from cluster.api.admin.paging import PageQuery
from cluster.api.admin.store_errors import store_errors
from cluster.api.described import BEHIND_DOOR, gives, refuses
from cluster.api.services import Services
from cluster.api.usage_query import Days, UsageQuery
from cluster.api.usage_views import PAGE_EXAMPLE, UsagePage, usage_page
from tenants.ledger.usage import UsageSum, grouped

router = admin_router("/usage")


class AllUsageQuery(UsageQuery, PageQuery):
    tenant_id: Id | None = Field(None, description="of this tenant only, also if it was deleted since")


@router.get(
    "",
    responses={
        **gives(UsagePage, "Rows by tenant, day, model and key.", example=PAGE_EXAMPLE),
        **refuses(400, 404, *BEHIND_DOOR),
    },
)
async def get_usage(
    query: Annotated[AllUsageQuery, Query()], services: Services = Depends(services_of)
) -> Response:
    """What was used: without `tenant_id` by all tenants, `limit` of them at once. Cost is in micro-units.

    Deleted tenants are left out then: `tenant_id` still tells what one of them used, the audit log names them
    (`tenant.delete`), and `headrace usage export` has everybody's requests.
    """
    days = query.days(services.wall_clock())
    with store_errors():
        if query.tenant_id is not None:
            rows = await _of_one(services, query.tenant_id, query, days)
            return shown(usage_page(days, rows, None, omits_deleted=False))
        found_tenants = await services.store.list_tenants(query.after, query.limit + 1)
        tenants = found_tenants[: query.limit]
        next_after = tenants[-1].tenant_id if len(found_tenants) > len(tenants) else None
        rows = [row for it in tenants for row in await _of(services, it.tenant_id, query, days)]
        return shown(usage_page(days, rows, next_after, omits_deleted=True))


async def _of(services: Services, tenant_id: str, query: UsageQuery, days: Days) -> list[UsageSum]:
    return grouped(await services.ledger.usage(tenant_id, *days), query.dimensions)


async def _of_one(services: Services, tenant_id: str, query: UsageQuery, days: Days) -> list[UsageSum]:
    """Raises `NotFound` if there is neither usage nor a tenant of that id."""
    rows = await _of(services, tenant_id, query, days)
    if not rows:
        await found("tenant", tenant_id, services.store.get_tenant)
    return rows
