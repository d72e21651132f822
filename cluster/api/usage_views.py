"""Usage as it is shown: to a tenant its own, to an operator everybody's."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.api.usage_query import Days
from tenants.ledger.usage import UsageSum


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """`to` is included."""

    object: Literal["usage"] = "usage"
    first_day: str = msgspec.field(name="from")
    last_day: str = msgspec.field(name="to")
    data: tuple[UsageSum, ...]


class UsagePage(UsageView, frozen=True, kw_only=True):
    """Rows of some tenants; the page ends between two."""

    has_more: bool
    next_after: str | None
    omits_deleted: bool
    """Tenants that were deleted are not in it."""


EXAMPLE = {
    "object": "usage",
    "from": "2026-11-01",
    "to": "2026-11-30",
    "data": [
        {
            "tenant_id": "acme",
            "day": "2026-11-30",
            "model": None,
            "key_id": None,
            "requests": 3,
            "prompt_tokens": 1200,
            "cached_tokens": 1024,
            "completion_tokens": 300,
            "cost": 590,
        }
    ],
}
PAGE_EXAMPLE = {**EXAMPLE, "has_more": False, "next_after": None, "omits_deleted": True}


def usage_view(days: Days, rows: list[UsageSum]) -> UsageView:
    return UsageView(first_day=days.first, last_day=days.last, data=tuple(rows))


def usage_page(days: Days, rows: list[UsageSum], next_after: str | None, *, omits_deleted: bool) -> UsagePage:
    return UsagePage(
        first_day=days.first,
        last_day=days.last,
        data=tuple(rows),
        has_more=next_after is not None,
        next_after=next_after,
        omits_deleted=omits_deleted,
    )
