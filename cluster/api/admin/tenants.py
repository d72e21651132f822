"""`/admin/v1/tenants`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Depends, Path, Query, Response

from cluster.api.admin import documents, examples
from cluster.api.admin.answers import created, gone, shown, shown_one
from cluster.api.admin.bodies import ID_PATTERN, Id, NewTenant, TenantChange
from cluster.api.admin.changes import Wish, change, found, remove
from cluster.api.admin.door import Caller, actor_of, admin_router, locked_out, services_of
from cluster.api.admin.etag import IfMatch, IfNoneMatch
from cluster.api.admin.paging import PageQuery, page_of
from cluster.api.admin.store_errors import store_errors
from cluster.api.admin.terms_body import overridden
from cluster.api.admin.views import TenantView, tenant_view
from cluster.api.described import documented
from cluster.api.errors import ApiError
from cluster.api.reading import body_of
from cluster.api.services import Services
from tenants.store import TenantStore
from tenants.tenant import Tenant

router = admin_router("/tenants")

TenantId = Annotated[Id, Path(examples=["acme"], json_schema_extra={"pattern": ID_PATTERN})]


@router.post(
    "",
    status_code=201,
    openapi_extra=documented(NewTenant, examples.NEW_TENANT),
    responses=documents.creates(TenantView, examples.TENANT, 404),
)
async def create_tenant(
    caller: Caller,
    body: Annotated[NewTenant, Depends(body_of(NewTenant))],
    services: Services = Depends(services_of),
) -> Response:
    """Makes a tenant. 409 if the id is taken.

    An id is for ever: who takes that of a deleted tenant inherits its usage, spend and top-ups.
    """
    tenant = Tenant(
        tenant_id=body.tenant_id,
        name=body.name or body.tenant_id,
        tier=body.tier,
        created_at=services.wall_clock(),
        disabled=body.disabled,
        overrides=body.overrides,
    )
    with store_errors():
        await _check_terms(services.store, tenant)
        await services.store.create_tenant(tenant, actor_of(caller))
    return created(tenant_view(tenant), f"/admin/v1/tenants/{tenant.tenant_id}")


@router.get("", responses=documents.lists(TenantView, examples.TENANT))
async def list_tenants(
    query: Annotated[PageQuery, Query()], services: Services = Depends(services_of)
) -> Response:
    """Tenants by id."""
    with store_errors():
        return shown(
            await page_of(services.store.list_tenants, query, tenant_view, lambda tenant: tenant.tenant_id)
        )


@router.get("/{tenant_id}", responses=documents.shows(TenantView, examples.TENANT))
async def get_tenant(
    tenant_id: TenantId, if_none_match: IfNoneMatch = None, services: Services = Depends(services_of)
) -> Response:
    """One tenant."""
    with store_errors():
        tenant = await found("tenant", tenant_id, services.store.get_tenant)
    return shown_one(tenant_view(tenant), if_none_match)


@router.patch(
    "/{tenant_id}",
    openapi_extra=documented(TenantChange, examples.FREEZE),
    responses=documents.changes(TenantView, {**examples.TENANT, "disabled": True, "version": 2}),
)
async def change_tenant(
    caller: Caller,
    tenant_id: TenantId,
    body: Annotated[TenantChange, Depends(body_of(TenantChange))],
    if_match: IfMatch = None,
    services: Services = Depends(services_of),
) -> Response:
    """Replaces the fields that are given; `overrides` as a whole.

    `{"disabled": true}` freezes the tenant: within a second its keys are refused with 403 everywhere, and
    what runs for it is ended; `{"disabled": false}` lets it go on. 409 for the caller's own tenant.
    """
    if body.get("disabled") and tenant_id == caller.tenant.tenant_id:
        raise locked_out("A tenant can't be frozen with a key of its own.")
    store = services.store

    async def edited(tenant: Tenant) -> Tenant:
        changed = msgspec.structs.replace(tenant, **body)
        if changed.disabled and not tenant.disabled:
            changed = msgspec.structs.replace(changed, num_freezes=tenant.num_freezes + 1)
        if "tier" in body or "overrides" in body:
            await _check_terms(store, changed)
        return changed

    with store_errors():
        wish = Wish("tenant", tenant_id, if_match, actor_of(caller))
        tenant = await change(wish, store.get_tenant, store.put_tenant, edited)
    services.authenticator.forget_tenant(tenant_id)
    return shown_one(tenant_view(tenant))


@router.delete("/{tenant_id}", status_code=204, responses=documents.removes())
async def delete_tenant(
    caller: Caller,
    tenant_id: TenantId,
    if_match: IfMatch = None,
    services: Services = Depends(services_of),
) -> Response:
    """Removes a tenant with all its keys, and ends what runs for it. 409 for the caller's own.

    Its usage, spend and top-ups stay with its id: a tenant that is made with it again inherits them. To end
    service for a while, freeze it.
    """
    if tenant_id == caller.tenant.tenant_id:
        raise locked_out("A tenant can't be deleted with a key of its own.")
    store = services.store
    with store_errors():
        wish = Wish("tenant", tenant_id, if_match, actor_of(caller))
        await remove(wish, store.get_tenant, store.delete_tenant)
    services.authenticator.forget_tenant(tenant_id)
    return gone()


async def _check_terms(store: TenantStore, tenant: Tenant) -> None:
    """Raises `ApiError`: 404 if there is no such tier, 400 naming the override that does not go with it."""
    tier = await store.get_tier(tenant.tier)
    if tier is None:
        raise ApiError(404, "not_found", f"There is no tier {tenant.tier}.", param="tier")
    overridden(tier, tenant.overrides)
