"""`/admin/v1/limits`: what a tenant may take, how it stands, and more budget for it."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from cluster.api.admin import documents, examples
from cluster.api.admin.answers import shown
from cluster.api.admin.bodies import ID_PATTERN, Id, KeyId, Reset, TopUp, Window
from cluster.api.admin.changes import found
from cluster.api.admin.door import Caller, actor_of, admin_router, services_of
from cluster.api.admin.store_errors import store_errors
from cluster.api.admin.terms_body import overridden
from cluster.api.admin.views import LimitsView, limits_view
from cluster.api.described import BEHIND_DOOR, Responses, documented, gives, refuses
from cluster.api.errors import ApiError
from cluster.api.reading import body_of
from cluster.api.services import Services
from tenants.api_key import ApiKey
from tenants.audit import Actor, AuditEntry
from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import Scope
from tenants.ledger.state import Spends
from tenants.store import NotFound, StoreUnavailable, TenantStore
from tenants.terms import Limits, Terms

router = admin_router("/limits/{tenant_id}")

TenantId = Annotated[Id, Path(examples=["acme"], json_schema_extra={"pattern": ID_PATTERN})]
_TOLD = gives(LimitsView, "As they stand now.", example=examples.LIMITS)
_ADJUSTS: Responses = {**_TOLD, **refuses(*documents.BODY, 404, 409, *BEHIND_DOOR)}


class LimitsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    key_id: KeyId | None = Field(None, description="with this key's own limits")


class Whose(NamedTuple):
    """A tenant's limits, or those of one of its keys besides."""

    tenant_id: str
    terms: Terms
    key: ApiKey | None

    @property
    def scopes(self) -> list[Scope]:
        tenants = Scope(None, self.terms)
        if self.key is None or self.key.limits is None:
            return [tenants]
        return [tenants, Scope(self.key.key_id, self.key.limits)]

    def check_budget(self, window: Window) -> None:
        """Raises `ApiError` 409 if there is no budget that could be added to."""
        limits: Limits = self.terms if self.key is None else self.key.limits or Limits()
        if (limits.budget_day if window == "day" else limits.budget_month) is None:
            name = f"Tenant {self.tenant_id}" if self.key is None else f"Key {self.key.key_id}"
            raise ApiError(409, "no_budget", f"{name} has no budget of a {window}: it may spend freely.")


@router.get(
    "",
    responses={**_TOLD, **refuses(400, 404, *BEHIND_DOOR)},
)
async def get_limits(
    tenant_id: TenantId, query: Annotated[LimitsQuery, Query()], services: Services = Depends(services_of)
) -> Response:
    """The terms that hold, and each limit as it stands. `soft`: the tenant is being warned of it.

    What gateways hold of a budget as purses, for when the record is away, counts as spent meanwhile.
    """
    with store_errors():
        whose = await _whose(services.store, tenant_id, query.key_id)
        return shown(await _told(services, whose))


@router.post("/top-up", openapi_extra=documented(TopUp, examples.TOP_UP), responses=_ADJUSTS)
async def top_up(
    caller: Caller,
    tenant_id: TenantId,
    body: Annotated[TopUp, Depends(body_of(TopUp))],
    services: Services = Depends(services_of),
) -> Response:
    """Adds `amount` micro-units to the day or month that is running now, in force at once.

    Twice is two top-ups. 409 `no_budget`: nothing limits that window. 503 `spool_unavailable`: nothing was
    changed. 503 `adjustment_pending`: it holds as soon as the ledger answers, so do not repeat it.
    """
    return await _adjusted(services, tenant_id, body, actor_of(caller))


@router.post("/reset", openapi_extra=documented(Reset, examples.RESET), responses=_ADJUSTS)
async def reset(
    caller: Caller,
    tenant_id: TenantId,
    body: Annotated[Reset, Depends(body_of(Reset))],
    services: Services = Depends(services_of),
) -> Response:
    """Makes all of the budget of the running day or month available again, what was topped up included.

    What was spent of it until now is forgiven; what runs stays reserved. It changes no usage, and twice is
    once. 409 and 503 as of a top-up.
    """
    return await _adjusted(services, tenant_id, body, actor_of(caller))


async def _adjusted(services: Services, tenant_id: str, body: TopUp | Reset, by: Actor) -> Response:
    """Once it is written down it holds, whatever fails then: who adds money is on disk before it is added."""
    with store_errors():
        whose = await _whose(services.store, tenant_id, body.key_id)
        whose.check_budget(body.window)
        adjustment = _adjustment(tenant_id, body, by, await services.ledger.spends(tenant_id, body.key_id))
    try:
        await _written(services, adjustment)
        await services.store.note(_entry(adjustment))
        return shown(await _told(services, whose))
    except StoreUnavailable:
        message = "It is written down, and holds as soon as the ledger answers: do not repeat it."
        raise ApiError(503, "adjustment_pending", message) from None


async def _written(services: Services, adjustment: Adjustment) -> None:
    try:
        await services.adjust(adjustment)
    except OSError:
        message = "It could not be written to the gateway's disk: nothing was changed."
        raise ApiError(503, "spool_unavailable", message) from None


def _adjustment(tenant_id: str, body: TopUp | Reset, by: Actor, spends: Spends) -> Adjustment:
    """A reset forgives what is spent now."""
    spend = spends.day if body.window == "day" else spends.month
    return Adjustment(
        adjustment_id=secrets.token_hex(16),
        tenant_id=tenant_id,
        key_id=body.key_id,
        window=body.window,
        action="top_up" if isinstance(body, TopUp) else "reset",
        amount=body.amount if isinstance(body, TopUp) else spend.spent,
        at=spends.now_us / 10**6,
        by=by,
    )


def _entry(adjustment: Adjustment) -> AuditEntry:
    given: dict[str, Any] = {"window": adjustment.window}
    if adjustment.action == "top_up":
        given["amount"] = adjustment.amount
    if adjustment.key_id is not None:
        given["key_id"] = adjustment.key_id
    return AuditEntry(
        entry_id="",
        at=adjustment.at,
        actor=adjustment.by,
        action=f"budget.{adjustment.action}",
        target=adjustment.tenant_id,
        changes={name: (None, value) for name, value in given.items()},
    )


async def _whose(store: TenantStore, tenant_id: str, key_id: str | None) -> Whose:
    """Raises `NotFound`, of the key too if it is another tenant's."""
    tenant = await found("tenant", tenant_id, store.get_tenant)
    tier = await found("tier", tenant.tier, store.get_tier)
    key = None if key_id is None else await store.get_key(key_id)
    if key_id is not None and (key is None or key.tenant_id != tenant_id):
        raise NotFound(f"tenant {tenant_id} has no key {key_id}")
    return Whose(tenant_id, overridden(tier, tenant.overrides), key)


async def _told(services: Services, whose: Whose) -> LimitsView:
    model = services.model_name
    standing = await services.ledger.standing(whose.tenant_id, model, whose.scopes)
    return limits_view(
        tenant_id=whose.tenant_id, key=whose.key, model=model, terms=whose.terms, standing=standing
    )
