"""`/admin/v1/tiers`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Depends, Path, Query, Response

from cluster.api.admin import documents, examples
from cluster.api.admin.answers import created, gone, shown, shown_one
from cluster.api.admin.bodies import ID_PATTERN, Id, NewTier, TierChange
from cluster.api.admin.changes import Wish, change, found, remove
from cluster.api.admin.door import Caller, actor_of, admin_router, services_of
from cluster.api.admin.etag import IfMatch, IfNoneMatch
from cluster.api.admin.paging import PageQuery, page_of
from cluster.api.admin.store_errors import store_errors
from cluster.api.admin.terms_body import as_values, breaks
from cluster.api.admin.views import TierView, tier_view
from cluster.api.described import documented
from cluster.api.reading import body_of
from cluster.api.services import Services
from tenants.store import TenantStore
from tenants.tenant import terms_of
from tenants.terms import Terms
from tenants.tier import Tier

router = admin_router("/tiers")

_PAGE = 1000
TierName = Annotated[Id, Path(examples=["gold"], json_schema_extra={"pattern": ID_PATTERN})]


@router.post(
    "",
    status_code=201,
    openapi_extra=documented(NewTier, examples.NEW_TIER),
    responses=documents.creates(TierView, examples.TIER),
)
async def create_tier(
    caller: Caller,
    body: Annotated[NewTier, Depends(body_of(NewTier))],
    services: Services = Depends(services_of),
) -> Response:
    """Makes a tier. 409 if the name is taken."""
    tier = Tier(name=body.name, terms=as_values(body.terms, Terms))
    with store_errors():
        await services.store.create_tier(tier, actor_of(caller))
    return created(tier_view(tier), f"/admin/v1/tiers/{tier.name}")


@router.get("", responses=documents.lists(TierView, examples.TIER))
async def list_tiers(
    query: Annotated[PageQuery, Query()], services: Services = Depends(services_of)
) -> Response:
    """Tiers by name."""
    with store_errors():
        return shown(await page_of(services.store.list_tiers, query, tier_view, lambda tier: tier.name))


@router.get("/{name}", responses=documents.shows(TierView, examples.TIER))
async def get_tier(
    name: TierName, if_none_match: IfNoneMatch = None, services: Services = Depends(services_of)
) -> Response:
    """One tier."""
    with store_errors():
        return shown_one(tier_view(await found("tier", name, services.store.get_tier)), if_none_match)


@router.patch(
    "/{name}",
    openapi_extra=documented(TierChange, examples.TIER_CHANGE),
    responses=documents.changes(TierView, examples.TIER),
)
async def change_tier(
    caller: Caller,
    name: TierName,
    body: Annotated[TierChange, Depends(body_of(TierChange))],
    if_match: IfMatch = None,
    services: Services = Depends(services_of),
) -> Response:
    """Replaces those of the tier's terms that are given; the others stay.

    All its tenants have the new terms within a second. 409 if some tenant's overrides would not go with them.
    """
    store = services.store

    async def edited(tier: Tier) -> Tier:
        changed = msgspec.structs.replace(tier, terms=terms_of(tier, body.get("terms", {})))
        await _check_tenants(store, changed)
        return changed

    with store_errors():
        wish = Wish("tier", name, if_match, actor_of(caller))
        return shown_one(tier_view(await change(wish, store.get_tier, store.put_tier, edited)))


@router.delete("/{name}", status_code=204, responses=documents.removes())
async def delete_tier(
    caller: Caller,
    name: TierName,
    if_match: IfMatch = None,
    services: Services = Depends(services_of),
) -> Response:
    """Removes a tier. 409 while a tenant is of it."""
    store = services.store
    with store_errors():
        await remove(Wish("tier", name, if_match, actor_of(caller)), store.get_tier, store.delete_tier)
    return gone()


async def _check_tenants(store: TenantStore, tier: Tier) -> None:
    """Raises `ApiError` 409 naming the first tenant of `tier` whose overrides don't go with it."""
    after = ""
    while tenants := await store.list_tenants(after, _PAGE):
        for tenant in tenants:
            if tenant.tier == tier.name:
                try:
                    terms_of(tier, tenant.overrides)
                except msgspec.ValidationError:
                    raise breaks(tier, tenant.tenant_id) from None
        after = tenants[-1].tenant_id
