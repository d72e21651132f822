"""Limits and terms as a caller gives them: any of their fields, each within its bounds.

What is left out has its default in a new tier, stays as it is in a change of one, and is the tier's in a
tenant's overrides. null is no limit. Fields and bounds are those of `tenants.terms`; a test holds them equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from cluster.api.errors import ApiError, bad_request
from tenants.tenant import terms_of
from tenants.terms import (
    MAX_BUDGET,
    MAX_BURST_S,
    MAX_PER_MIN,
    MAX_PRICE,
    MAX_TOKENS,
    Limits,
    Offline,
    ServiceClass,
    Terms,
)
from tenants.tier import Tier

STRICT = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)
MAX_MODELS = 64

_PerMin = Annotated[int, Field(ge=1, le=MAX_PER_MIN)]
_Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
_Count = Annotated[int, Field(ge=1, le=10**6)]
_Micro = Annotated[int, Field(ge=0, le=MAX_BUDGET)]
_Price = Annotated[int, Field(ge=0, le=MAX_PRICE)]
_Model = Annotated[str, Field(min_length=1, max_length=256)]

_PLACE = re.compile(r"`\$\.([a-z_]+)")


@with_config(STRICT)
class LimitsBody(TypedDict, total=False):
    requests_per_min: _PerMin | None
    input_tokens_per_min: Annotated[_PerMin | None, Field(description="cached ones are given back")]
    output_tokens_per_min: _PerMin | None
    burst_s: Annotated[
        int, Field(ge=1, le=MAX_BURST_S, description="so many seconds of each rate may be taken at once")
    ]
    max_concurrency: Annotated[_Count | None, Field(description="queued and running requests")]
    budget_day: Annotated[_Micro | None, Field(description="micro-units a day, in UTC")]
    budget_month: Annotated[_Micro | None, Field(description="micro-units a month, in UTC")]


@with_config(STRICT)
class TermsBody(LimitsBody, total=False):
    weight: Annotated[int, Field(ge=1, le=1000, description="share among the waiting tenants of a class")]
    service_class: ServiceClass
    max_queue_len: _Count | None
    max_context_tokens: Annotated[_Tokens | None, Field(description="prompt + output of one request")]
    max_output_tokens: _Tokens
    models: Annotated[
        Annotated[list[_Model], Field(max_length=MAX_MODELS)] | None,
        Field(description="what its tenants may ask for; null: all"),
    ]
    input_price: Annotated[_Price, Field(description="micro-units per 10^6 tokens")]
    cached_input_price: _Price
    output_price: _Price
    offline: Annotated[Offline, Field(description="what becomes of requests while the record is away")]


Values = TypeVar("Values", Limits, Terms)


def as_values(body: LimitsBody | TermsBody, kind: type[Values]) -> Values:
    """What is left out has its default."""
    return msgspec.convert(body, kind)


def overridden(tier: Tier, overrides: Mapping[str, Any]) -> Terms:
    """The terms that hold. Raises `ApiError` 400 naming `overrides` and the field that breaks them."""
    try:
        return terms_of(tier, overrides)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        param = f"overrides.{place[1]}" if place else "overrides"
        raise bad_request(f"'{param}' does not go with tier {tier.name}: {error}.", param=param) from None


def breaks(tier: Tier, tenant_id: str) -> ApiError:
    message = f"The overrides of tenant {tenant_id} would not go with tier {tier.name}: change these first."
    return ApiError(409, "conflict", message)
