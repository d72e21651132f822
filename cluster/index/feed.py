"""Tells the prefix index what this replica holds, and that it lives: one task on the replica's event loop.

It must not matter to serving whether the index lives: nothing here raises into the replica or blocks its
loop, and no request waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

from cluster.index.block_news import BlockNews
from cluster.index.prefix_index import HEARTBEAT_S, IndexUnavailable, PrefixIndex
from cluster.index.publisher import PUBLISH_EVERY_S, IndexFigures, PrefixPublisher
from cluster.link import Abort

log = logging.getLogger("headrace.prefix_index")

MAX_CLAIMS = 5
"""Numbers tried at the start; two replicas in a row that draw one number are rarer than any other fault."""


async def claim_incarnation(index: PrefixIndex, drawn: int) -> int:
    """`drawn`, or another number if it is taken: to be called before anyone is told of it.

    Without the index it is `drawn`, unclaimed; the first heartbeat that gets through makes up for that.
    """
    with suppress(IndexUnavailable):
        for _ in range(MAX_CLAIMS):
            if await index.claim(drawn):
                break
            drawn = secrets.randbits(32)
    return drawn


class IndexFeed:
    """Owns the task, and the publisher of what the engine thread says through `news`.

    `on_aborts` is called with what gateways left for this replica because they could not reach it.
    """

    def __init__(
        self,
        index: PrefixIndex,
        incarnation: int,
        news: BlockNews,
        on_aborts: Callable[[Sequence[Abort]], None],
        clock: Callable[[], float],
    ) -> None:
        self._index = index
        self._incarnation = incarnation
        self._news = news
        self._on_aborts = on_aborts
        self._clock = clock
        self._publisher = PrefixPublisher()
        self._next_beat = clock()
        self._dead: frozenset[int] = frozenset()
        self._task: asyncio.Task[None] | None = None

    @property
    def figures(self) -> IndexFigures:
        return self._publisher.figures

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Ends the task. The claims stay: they die `INCARNATION_TTL_S` after the last heartbeat."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self.tick()
            await asyncio.sleep(PUBLISH_EVERY_S)

    async def tick(self) -> None:
        """Takes in what the engine said; beats, and tells the index, if it is time. Never raises."""
        before = self.figures.state
        self._publisher.take(self._news.take())
        try:
            await self._beat()
            await self._publish()
        except IndexUnavailable as error:
            self._publisher.failed(str(error))
        except Exception as error:
            log.exception("telling the prefix index failed")
            self._publisher.failed(type(error).__name__)
        after = self.figures
        if after.state != before:
            log.info("prefix index: %s, was %s: %s", after.state, before, after.reason)

    async def _beat(self) -> None:
        now = self._clock()
        if now < self._next_beat:
            return
        self._next_beat = now + HEARTBEAT_S
        beat = await self._index.beat(self._incarnation)
        self._dead = beat.dead
        self._publisher.has_beaten(beat.was_alive, self._clock())
        if beat.aborts:
            self._on_aborts(beat.aborts)

    async def _publish(self) -> None:
        batch = self._publisher.next_batch(self._clock())
        if batch is not None:
            changed = await self._index.publish(self._incarnation, batch.changes, self._dead)
            self._publisher.acknowledged(batch, changed)
