"""A gateway's pools of replicas: which there are, whose each replica is, and who is there altogether.

Pools come and go while gateways run (a new version is a new pool), so a gateway looks every second
which ones are deployed. Nobody has to tell it, and one that starts anew knows as much as the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

from cluster.link import TokenLink
from cluster.replica_registry import Listener

log = logging.getLogger("headrace.gateway")

LOOK_EVERY_S = 1.0


class Pool(Protocol):
    """One pool as one gateway reaches it."""

    def link(self, replica_id: str) -> TokenLink: ...

    async def close(self) -> None: ...


class ReplicaPools:
    """Owns the pools of one gateway. Lives on the event loop.

    `deployed()` gives the ids of the pools that are deployed now; `open_pool(pool_id, listener)` opens
    one, whose replicas the listener hears from then on; `on_replicas` hears the union of all.
    """

    def __init__(
        self,
        deployed: Callable[[], Awaitable[frozenset[str]]],
        open_pool: Callable[[str, Listener], Pool],
        on_replicas: Listener,
    ) -> None:
        self._deployed = deployed
        self._open_pool = open_pool
        self._on_replicas = on_replicas
        self._pools: dict[str, Pool] = {}
        self._replicas: dict[str, frozenset[str]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def connect(self, replica_id: str) -> TokenLink:
        """Raises `LookupError` for a replica that no pool lists."""
        for pool_id, replica_ids in self._replicas.items():
            if replica_id in replica_ids:
                return self._pools[pool_id].link(replica_id)
        raise LookupError(f"no pool lists replica {replica_id}")

    async def follow(self) -> None:
        """Looks again and again which pools there are; what cannot be known now stays as it was."""
        while True:
            await self._look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        try:
            deployed = await self._deployed()
        except Exception as error:  # Serve's controller is away for seconds when it restarts
            log.warning("the pools could not be read: %s", type(error).__name__)
            return
        try:
            self.set_pools(deployed)
        except Exception:  # one that cannot be opened must not end the looking
            log.exception("a pool could not be opened or closed")

    def set_pools(self, pool_ids: Iterable[str]) -> None:
        """Opens the new ones and lets go of those that are no longer deployed and list nobody."""
        deployed = frozenset(pool_ids)
        for pool_id in deployed - self._pools.keys():
            self._replicas[pool_id] = frozenset()
            self._pools[pool_id] = self._open_pool(pool_id, partial(self._hear, pool_id))
        for pool_id in self._pools.keys() - deployed:
            if not self._replicas[pool_id]:
                self._let_go(pool_id)

    def _hear(self, pool_id: str, replica_ids: frozenset[str]) -> None:
        if pool_id in self._pools:
            self._replicas[pool_id] = replica_ids
            self._on_replicas(frozenset().union(*self._replicas.values()))

    def _let_go(self, pool_id: str) -> None:
        del self._replicas[pool_id]
        task = asyncio.ensure_future(self._pools.pop(pool_id).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
