"""Who may pass into `/admin`, and what the routes behind it work with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from cluster.api.auth import require
from cluster.api.errors import ApiError
from cluster.api.reading import each_once
from cluster.api.services import Services
from tenants.audit import Actor
from tenants.store import Account

_READER = require("admin", "admin:read")
"""May look at everything."""
Caller = Annotated[Account, Depends(require("admin"))]
"""May do everything."""


def admin_router(path: str) -> APIRouter:
    """Routes below `/admin/v1` + `path`. Who has no key of an admin scope learns nothing else there."""
    dependencies = [Depends(_READER), Depends(each_once)]
    return APIRouter(prefix=f"/admin/v1{path}", tags=["Administration"], dependencies=dependencies)


def services_of(request: Request) -> Services:
    return request.app.state.services  # type: ignore[no-any-return]


def actor_of(caller: Account) -> Actor:
    return Actor(caller.tenant.tenant_id, caller.key.key_id)


def locked_out(message: str) -> ApiError:
    """409: the caller would throw away its own way in."""
    return ApiError(409, "conflict", message)
