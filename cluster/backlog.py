"""What waits at a gateway, by tenant, as it tells its replicas."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec

MAX_TENANTS = 64


class Backlog(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One tenant's requests that wait for credit."""

    tenant_id: str
    """Empty: many tenants that are told as one."""
    tokens: int
    """Uncached, of their prompts."""
    requests: int
    """With each sibling that they ask for."""
    weight: int = 1
    priority: int = 0
    """As of `Request.priority`: lower is served first."""


def bounded(backlogs: Iterable[Backlog]) -> tuple[Backlog, ...]:
    """The `MAX_TENANTS` with the most tokens; the others as one for each priority, with the weight of all."""
    most_first = sorted(backlogs, key=lambda one: (-one.tokens, one.tenant_id, one.priority))
    told, rest = most_first[:MAX_TENANTS], most_first[MAX_TENANTS:]
    rest.sort(key=lambda one: one.priority)
    return (
        *told,
        *(_as_one(priority, list(ones)) for priority, ones in groupby(rest, lambda one: one.priority)),
    )


def _as_one(priority: int, ones: list[Backlog]) -> Backlog:
    return Backlog(
        tenant_id="",
        tokens=sum(one.tokens for one in ones),
        requests=sum(one.requests for one in ones),
        weight=sum(one.weight for one in ones),
        priority=priority,
    )
