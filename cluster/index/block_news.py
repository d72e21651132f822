"""What becomes of a replica's indexed blocks, on its way from the engine thread to the event loop."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from cluster.index.prefix_index import INDEX_EVERY
from engine.block_chain import NamedBlock
from engine.block_events import BlockListener


class Stored(NamedTuple):
    root: bytes
    block_hash: bytes


class Evicted(NamedTuple):
    block_hash: bytes


class Cleared(NamedTuple):
    """All blocks are gone."""


Event = Stored | Evicted | Cleared


class BlockNews(BlockListener):
    """Owns the events that nobody has taken yet. One thread tells, another takes, and neither waits.

    Unbounded: it is taken every `PUBLISH_EVERY_S`, whether or not an index can be told.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def stored(self, root: bytes, block: NamedBlock) -> None:
        if _is_indexed(block):
            self._events.append(Stored(root, block.block_hash))

    def evicted(self, block: NamedBlock) -> None:
        if _is_indexed(block):
            self._events.append(Evicted(block.block_hash))

    def cleared(self) -> None:
        self._events.append(Cleared())

    def take(self) -> list[Event]:
        """All that was told so far, in order."""
        return [self._events.popleft() for _ in range(len(self._events))]


def _is_indexed(block: NamedBlock) -> bool:
    return block.depth % INDEX_EVERY == INDEX_EVERY - 1
