"""What a tenant used, by day, model and key. Sums of settlements, nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple, get_args

import msgspec

from tenants.ledger.settlement import Settlement
from tenants.ledger.windows import day_name, days_between

MAX_DAYS_ASKED = 3700
"""Ten years and a little."""


class Sums(NamedTuple):
    """What settlements add to the row of their day, model and key."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0

    def plus(self, other: Sums) -> Sums:
        return Sums(*(mine + its for mine, its in zip(self, other, strict=True)))

    def minus(self, other: Sums) -> Sums:
        return Sums(*(mine - its for mine, its in zip(self, other, strict=True)))


def sums_of(settlement: Settlement) -> Sums:
    """One settlement's. What was never served counts nothing: `unserved`, or reaped without a token."""
    tokens = (settlement.prompt_tokens, settlement.cached_tokens, settlement.completion_tokens)
    if settlement.outcome == "unserved" or not any(tokens):
        return Sums()
    return Sums(1, *tokens, settlement.cost)


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were served, at least in part, on one UTC day with one key and model."""

    day: str
    """`2026-11-30`: the UTC day of `started_at`."""
    tenant_id: str
    model: str
    key_id: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    """Micro-units."""


Dimension = Literal["day", "model", "key"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """Rows taken together; null where they were not told apart."""

    tenant_id: str
    day: str | None
    model: str | None
    key_id: str | None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    """Micro-units."""


def grouped(rows: Iterable[UsageRow], by: Collection[Dimension]) -> list[UsageSum]:
    """One sum for each tenant and each value of the dimensions in `by`, in the order of these."""
    sums: dict[tuple[str, str, str, str], Sums] = {}
    for row in rows:
        place = (
            row.tenant_id,
            row.day if "day" in by else "",
            row.model if "model" in by else "",
            row.key_id if "key" in by else "",
        )
        sums[place] = sums.get(place, Sums()).plus(_numbers_of(row))
    return [_sum(*place, total) for place, total in sorted(sums.items())]


def _numbers_of(row: UsageRow) -> Sums:
    return Sums(row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost)


def _sum(tenant_id: str, day: str, model: str, key_id: str, total: Sums) -> UsageSum:
    return UsageSum(
        tenant_id=tenant_id, day=day or None, model=model or None, key_id=key_id or None, **total._asdict()
    )


def row(tenant_id: str, day: int, model: str, key_id: str, sums: Sums) -> UsageRow:
    return UsageRow(day=day_name(day), tenant_id=tenant_id, model=model, key_id=key_id, **sums._asdict())


def days_asked(first_day: str, last_day: str) -> range:
    """Numbers of the days, both included. Raises ValueError."""
    days = days_between(first_day, last_day)
    if len(days) > MAX_DAYS_ASKED:
        raise ValueError(f"{len(days)} days are too many: at most {MAX_DAYS_ASKED} can be asked for at once")
    return days
