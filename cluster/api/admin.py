"""The operator's API: tenants and their keys. Every route needs a key of scope admin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError

from cluster.api.admin_types import NewKey, NewTenant, key_view, list_view, tenant_view
from cluster.api.auth import require, store_unavailable
from cluster.api.errors import ApiError
from cluster.api.services import Services
from cluster.api.strict_json import parse_object
from cluster.api.validation import check_content_type, first_problem
from tenants.api_key import ApiKey, hash_key, new_key, new_key_id
from tenants.auth import Identity
from tenants.store import Conflict, NotFound, StoreUnavailable
from tenants.tenant import Tenant

Model = TypeVar("Model", bound=BaseModel)

_admin = require("admin")

router = APIRouter(prefix="/admin/v1", tags=["admin"], dependencies=[Depends(_admin)])


def services_of(request: Request) -> Services:
    return request.app.state.services  # type: ignore[no-any-return]


def body_of(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """A dependency that reads the body as `model`. Raises `ApiError` 400 naming the field."""

    async def read(request: Request) -> Model:
        check_content_type(request.headers.get("content-type"), request.headers.get("content-encoding"))
        try:
            return model.model_validate(parse_object(await request.body()))
        except ValidationError as error:
            raise first_problem(error.errors(include_url=False, include_input=False)) from None

    return read


_new_tenant, _new_key = body_of(NewTenant), body_of(NewKey)


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """How a body that `body_of` reads appears in the API's description."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


@contextmanager
def store_errors() -> Iterator[None]:
    """The store's refusals as answers: 404, 409, 503."""
    try:
        yield
    except NotFound as error:
        raise ApiError(404, "not_found", _sentence(error)) from None
    except Conflict as error:
        raise ApiError(409, "conflict", _sentence(error)) from None
    except StoreUnavailable:
        raise store_unavailable() from None


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


@router.post("/tenants", status_code=201, openapi_extra=documented(NewTenant))
async def create_tenant(
    body: NewTenant = Depends(_new_tenant), services: Services = Depends(services_of)
) -> JSONResponse:
    """Makes a tenant. 409 if the id is taken."""
    tenant = Tenant(
        tenant_id=body.tenant_id,
        name=body.name or body.tenant_id,
        tier=body.tier,
        created_at=services.wall_clock(),
    )
    with store_errors():
        await services.store.create_tenant(tenant)
    return JSONResponse(tenant_view(tenant), 201)


@router.get("/tenants")
async def list_tenants(services: Services = Depends(services_of)) -> JSONResponse:
    """All tenants, by id."""
    with store_errors():
        tenants = await services.store.list_tenants()
    return JSONResponse(list_view([tenant_view(tenant) for tenant in tenants]))


@router.get("/tenants/{tenant_id}")
async def get_tenant(tenant_id: str, services: Services = Depends(services_of)) -> JSONResponse:
    """One tenant."""
    with store_errors():
        tenant = await services.store.get_tenant(tenant_id)
        if tenant is None:
            raise NotFound(f"there is no tenant {tenant_id}")
    return JSONResponse(tenant_view(tenant))


@router.delete("/tenants/{tenant_id}", status_code=204)
async def delete_tenant(
    tenant_id: str, services: Services = Depends(services_of), caller: Identity = Depends(_admin)
) -> Response:
    """Removes a tenant with all its keys. 409 for the caller's own: that would lock everybody out."""
    if tenant_id == caller.tenant.tenant_id:
        raise ApiError(409, "conflict", "A tenant can't be deleted with a key of its own.")
    with store_errors():
        await services.store.delete_tenant(tenant_id)
    services.authenticator.forget_tenant(tenant_id)
    return Response(status_code=204)


@router.post("/tenants/{tenant_id}/keys", status_code=201, openapi_extra=documented(NewKey))
async def create_key(
    tenant_id: str, body: NewKey = Depends(_new_key), services: Services = Depends(services_of)
) -> JSONResponse:
    """Makes a key. The field `key` of this answer is the only place where it is ever shown."""
    key, now = new_key(), services.wall_clock()
    record = ApiKey(
        key_id=new_key_id(),
        tenant_id=tenant_id,
        key_hash=hash_key(services.secret, key),
        scopes=tuple(body.scopes),
        hint=key[-4:],
        created_at=now,
        expires_at=None if body.expires_in_s is None else now + body.expires_in_s,
    )
    with store_errors():
        await services.store.create_key(record)
    return JSONResponse({**key_view(record), "key": key}, 201, headers={"Cache-Control": "no-store"})


@router.get("/tenants/{tenant_id}/keys")
async def list_keys(tenant_id: str, services: Services = Depends(services_of)) -> JSONResponse:
    """A tenant's keys, oldest first, without the keys themselves."""
    with store_errors():
        keys = await services.store.list_keys(tenant_id)
    return JSONResponse(list_view([key_view(key) for key in keys]))


@router.delete("/tenants/{tenant_id}/keys/{key_id}", status_code=204)
async def delete_key(
    tenant_id: str,
    key_id: str,
    services: Services = Depends(services_of),
    caller: Identity = Depends(_admin),
) -> Response:
    """Ends a key: at once in this gateway, within 1 s in the others. 409 for the caller's own."""
    if key_id == caller.key.key_id:
        raise ApiError(409, "conflict", "A key can't delete itself: use another one.")
    with store_errors():
        await services.store.delete_key(tenant_id, key_id)
    services.authenticator.forget_key(key_id)
    return Response(status_code=204)
