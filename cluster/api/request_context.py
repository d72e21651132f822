"""A request that has passed the door: who asks, since when, and until when an answer is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Depends, Request

from cluster.api.auth import refusals, require
from cluster.api.errors import ApiError, deadline_exceeded
from cluster.api.services import Services
from cluster.api.validation import check_content_type, is_return, request_timeout_s, service_class
from tenants.store import Account
from tenants.terms import ServiceClass

_inference = require("inference")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """`arrived` and `deadline` are on `services.clock`, in seconds. The id is the server's own."""

    services: Services
    account: Account
    request_id: str
    arrived: float
    deadline: float
    service_class: ServiceClass = "interactive"
    is_return: bool = False
    """The client says that it asks again."""

    @property
    def remaining_s(self) -> float:
        return self.deadline - self.services.clock()

    def check_deadline(self) -> None:
        """Raises `ApiError` 503: expired work never starts."""
        if self.remaining_s <= 0:
            raise deadline_exceeded()

    async def account_now(self) -> Account:
        """Whose it is, as it is now: the body, and its tokens, may have come long after the key.

        Raises `ApiError` 401, 403 or 503.
        """
        with refusals():
            return await self.services.authenticator.again(self.account)

    def check_model(self, model: str) -> None:
        """Raises `ApiError` 404 for a name that is not the served one nor an alias, or not for the tenant."""
        served = (self.services.model_name, *self.services.aliases)
        if model not in served or not may_use(self.account, served):
            raise model_not_found(model)


def may_use(account: Account, served: Sequence[str]) -> bool:
    """Whether the tenant's terms name the model, by any of its names."""
    allowed = account.terms.models
    return allowed is None or not set(allowed).isdisjoint(served)


def model_not_found(model: str) -> ApiError:
    return ApiError(404, "model_not_found", f"The model {model[:256]!r} does not exist.", param="model")


async def request_context(http: Request, account: Account = Depends(_inference)) -> RequestContext:
    """The dependency of every route that generates. Raises `ApiError` for a bad header, or no key."""
    services: Services = http.app.state.services
    arrived = services.clock()
    check_content_type(http.headers.get("content-type"), http.headers.get("content-encoding"))
    timeout_s = request_timeout_s(http.headers.get("x-request-timeout"))
    return RequestContext(
        services,
        account,
        http.state.request_id,
        arrived,
        deadline=arrived + timeout_s,
        service_class=service_class(http.headers.get("x-headrace-class"), account.terms.service_class),
        is_return=is_return(http.headers.get("x-stainless-retry-count")),
    )
