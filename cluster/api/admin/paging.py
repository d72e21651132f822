"""Lists in pages: `after` the last one that the caller has, at most `limit` of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
View = TypeVar("View")

MAX_LIMIT = 1000

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="at most so many")]


class PageQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    limit: Limit = 100
    after: str = Field("", max_length=128, description="the `next_after` of the page before")


class Page(msgspec.Struct, Generic[View], frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[View, ...]
    has_more: bool
    next_after: str | None
    """Where the next page begins; null on the last one."""


async def page_of(
    read: Callable[[str, int], Awaitable[Sequence[Item]]],
    query: PageQuery,
    view: Callable[[Item], View],
    name: Callable[[Item], str],
) -> Page[View]:
    """`read(after, limit)` gives items in the order of their names."""
    found = await read(query.after, query.limit + 1)
    items = found[: query.limit]
    has_more = len(found) > len(items)
    return Page(
        data=tuple(map(view, items)), has_more=has_more, next_after=name(items[-1]) if has_more else None
    )
