"""Waiting for work that something else may end first: a client that leaves, a clock that runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def unless(work: Awaitable[T], *ends: tuple[Awaitable[object], Exception]) -> T:
    """The result of `work`, unless one of `ends` comes first.

    Then `work` is cancelled, its cleaning up is waited for, and that end's error is raised.
    """
    main = asyncio.ensure_future(work)
    others = {asyncio.ensure_future(end): error for end, error in ends}
    try:
        await asyncio.wait([main, *others], return_when=asyncio.FIRST_COMPLETED)
        if main.done():
            return main.result()
        error = next(error for other, error in others.items() if other.done())
    finally:
        await end_all(main, *others)
    raise error


async def first_of(*works: Awaitable[object]) -> None:
    """Returns when one of them has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_all(*tasks)


async def end_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancels what is not done and waits until all of it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def client_left(receive: Receive) -> None:
    """Returns when the client has closed the connection. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
