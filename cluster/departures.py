"""How a gateway parts from a replica that leaves: what runs there ends, or goes on elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from cluster.chores import Chores
from cluster.link import Abort, ReplicaLeft
from cluster.link_state import LinkState


class Departures:
    """What runs at one that leaves has `drain_limit_s` to end there; the rest fails with `ReplicaLeft`."""

    def __init__(self, chores: Chores, drain_limit_s: float) -> None:
        self._chores = chores
        self._drain_limit_s = drain_limit_s

    async def part(self, link: LinkState) -> None:
        """From one that said it leaves: it ends once all gateways have read the last, and closed."""
        await self._drain(link)
        assert link.task is not None
        link.task.cancel()

    async def finish(self, link: LinkState) -> None:
        """With one that left the list: once it is drained its stream is closed."""
        await self.part(link)
        assert link.task is not None
        with suppress(asyncio.CancelledError):
            await link.task

    async def _drain(self, link: LinkState) -> None:
        """Running requests end there within the drain limit; what is left then goes on elsewhere."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_limit_s):
                while link.inboxes:
                    link.emptied.clear()
                    await link.emptied.wait()
        left = link.fail(ReplicaLeft(f"replica {link.replica_id} leaves"))
        if left:
            self._chores.start(self._chores.abort(link, *map(Abort, left)))
