"""Which engine replicas a gateway's router knows: the router feeds it, the links listen.

It is a module of its own on purpose: Ray pickles the router's module by value, so a registry in
there would be a private copy that nobody hears.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

Listener = Callable[[frozenset[str]], None]


class ReplicaGone(RuntimeError):
    """The replica that a call was pinned to is no longer a candidate."""


class ReplicaWatch:
    """The current replica ids of one pool. The router owns them; listeners hear on their loop."""

    def __init__(self) -> None:
        self._ids: frozenset[str] = frozenset()
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Listener]] = []

    def subscribe(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self._listeners.append((loop, listener))
        loop.call_soon_threadsafe(listener, self._ids)

    def update(self, replica_ids: Iterable[str]) -> None:
        ids = frozenset(replica_ids)
        if ids == self._ids:
            return
        self._ids = ids
        for loop, listener in self._listeners:
            loop.call_soon_threadsafe(listener, ids)


_watches: dict[str, ReplicaWatch] = {}


def watch(application: str) -> ReplicaWatch:
    """The one watch of a pool's application in this process."""
    return _watches.setdefault(application, ReplicaWatch())


def forget(application: str) -> None:
    """Nobody hears more of it; the next `watch` is a new one."""
    _watches.pop(application, None)
