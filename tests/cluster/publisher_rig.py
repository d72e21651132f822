"""A publisher of prefixes beside an index that takes what it is told."""

from __future__ import annotations

from cluster.index.block_news import Event, Stored
from cluster.index.prefix_index import IndexState
from cluster.index.publisher import IndexBatch, PrefixPublisher

ROOT = b"root"
TICK_S = 0.125
"""Longer than `PUBLISH_EVERY_S`, and exact in binary."""


class Rig:
    """A publisher, and an index that takes what it is told or, if `is_down`, fails."""

    def __init__(self) -> None:
        self.now = 100.0
        self.publisher = PrefixPublisher()
        self.claims: set[tuple[bytes, bytes]] = set()
        self.batches: list[IndexBatch] = []
        self.is_down = False

    @classmethod
    def started(cls) -> Rig:
        rig = cls()
        rig.publisher.has_beaten(True, rig.now)
        rig.tick()
        assert rig.state == "exact"
        return rig

    @property
    def state(self) -> IndexState:
        return self.publisher.figures.state

    def take(self, *events: Event) -> None:
        self.publisher.take(events)

    def tick(self) -> IndexBatch | None:
        self.now += TICK_S
        batch = self.publisher.next_batch(self.now)
        if batch is not None:
            self.batches.append(batch)
            if self.is_down:
                self.publisher.failed("down")
            else:
                self.publisher.acknowledged(batch, self._apply(batch))
        return batch

    def _apply(self, batch: IndexBatch) -> int:
        before = set(self.claims)
        for root, stored, evicted in batch.changes:
            self.claims |= {(root, block_hash) for block_hash in stored}
            self.claims -= {(root, block_hash) for block_hash in evicted}
        return len(before ^ self.claims)

    def run(self, seconds: float) -> list[IndexBatch]:
        """The batches of so much time."""
        first = len(self.batches)
        for _ in range(round(seconds / TICK_S)):
            self.tick()
        return self.batches[first:]

    @property
    def held(self) -> set[bytes]:
        return {block_hash for _, block_hash in self.claims}


def names(count: int, start: int = 0) -> list[bytes]:
    return [b"%08d" % number for number in range(start, start + count)]


def stored(*block_hashes: bytes, root: bytes = ROOT) -> list[Event]:
    return [Stored(root, block_hash) for block_hash in block_hashes]
