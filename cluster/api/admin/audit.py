"""`/admin/v1/audit`: who changed what."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Query, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cluster.api.admin import examples
from cluster.api.admin.answers import shown
from cluster.api.admin.door import admin_router, services_of
from cluster.api.admin.paging import Limit
from cluster.api.admin.store_errors import store_errors
from cluster.api.admin.views import AuditPage, audit_view
from cluster.api.described import BEHIND_DOOR, gives, refuses
from cluster.api.field_checks import problem
from cluster.api.services import Services

router = admin_router("/audit")

_ENTRY_PATTERN = "^[0-9]{1,15}-[0-9]{1,15}$"


def _entry_id(text: str) -> str:
    if not re.fullmatch(_ENTRY_PATTERN.strip("^$"), text):
        raise problem("must be an entry's id, as in 1796000000000-0")
    return text


EntryId = Annotated[str, AfterValidator(_entry_id), Field(json_schema_extra={"pattern": _ENTRY_PATTERN})]


class AuditQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    limit: Limit = 100
    before: EntryId | None = Field(None, description="the `next_before` of the page before")


@router.get(
    "",
    responses={
        **gives(AuditPage, "The latest first.", example=examples.AUDIT),
        **refuses(400, *BEHIND_DOOR),
    },
)
async def list_audit(
    query: Annotated[AuditQuery, Query()], services: Services = Depends(services_of)
) -> Response:
    """Changes of tiers, tenants, keys and budgets, the latest first. About 10,000 are kept."""
    with store_errors():
        found = await services.store.list_audit(query.before or "", query.limit + 1)
    entries, has_more = found[: query.limit], len(found) > query.limit
    next_before = entries[-1].entry_id if has_more else None
    return shown(AuditPage(data=tuple(map(audit_view, entries)), has_more=has_more, next_before=next_before))
