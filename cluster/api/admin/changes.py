"""A change of one resource: read, changed, written; made again if somebody else was faster.

With `If-Match` nothing is changed but the version that it names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from cluster.api.admin.etag import check_match
from cluster.api.errors import ApiError
from tenants.api_key import ApiKey
from tenants.audit import Actor
from tenants.store import NotFound, StaleVersion
from tenants.tenant import Tenant
from tenants.tier import Tier

Resource = TypeVar("Resource", Tier, Tenant, ApiKey)

MAX_TRIES = 5


class Wish(NamedTuple):
    """Of what to change: its kind and name, for people; the caller's `If-Match`; who the caller is."""

    kind: str
    name: str
    if_match: str | None
    by: Actor


async def found(kind: str, name: str, get: Callable[[str], Awaitable[Resource | None]]) -> Resource:
    """Raises `NotFound`."""
    resource = await get(name)
    if resource is None:
        raise NotFound(f"there is no {kind} {name}")
    return resource


async def change(
    wish: Wish,
    get: Callable[[str], Awaitable[Resource | None]],
    put: Callable[[Resource, int | None, Actor], Awaitable[Resource]],
    edit: Callable[[Resource], Awaitable[Resource]],
) -> Resource:
    """What is there now. What changes nothing is not written. Raises `ApiError` or what the store does."""
    for _ in range(MAX_TRIES):
        current = await found(wish.kind, wish.name, get)
        check_match(wish.if_match, current.version)
        changed = await edit(current)
        if changed == current:
            return current
        try:
            return await put(changed, current.version, wish.by)
        except StaleVersion:
            continue
    raise _too_busy(wish)


async def remove(
    wish: Wish,
    get: Callable[[str], Awaitable[Resource | None]],
    delete: Callable[[str, int | None, Actor], Awaitable[None]],
) -> None:
    """Raises `ApiError` or what the store does."""
    if wish.if_match is None:
        await delete(wish.name, None, wish.by)
        return
    for _ in range(MAX_TRIES):
        current = await found(wish.kind, wish.name, get)
        check_match(wish.if_match, current.version)
        try:
            return await delete(wish.name, current.version, wish.by)
        except StaleVersion:
            continue
    raise _too_busy(wish)


def _too_busy(wish: Wish) -> ApiError:
    message = f"Others change {wish.kind} {wish.name} at the same time: look at it and try again."
    return ApiError(409, "conflict", message)
