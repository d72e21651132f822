"""The prefix index in memory: for tests and simulations, told the time, as simple as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from cluster.index.prefix_index import (
    ABORTS_TTL_S,
    ENTRY_TTL_S,
    INCARNATION_TTL_S,
    INDEX_EVERY,
    MAX_ABORTS,
    MAX_DEAD,
    MAX_HOLDERS,
    Changes,
    HeartbeatReply,
    indexed,
)
from cluster.link import Abort

Key = tuple[bytes, bytes]
"""Root and block hash."""


class MemoryPrefixIndex:
    """A `PrefixIndex` of plain dicts; never unavailable. `clock` tells the time in seconds.

    No method awaits, so each one is atomic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_beats: dict[int, float] = {}
        self._entries: dict[Key, tuple[float, list[int]]] = {}  # told at, holders
        self._aborts: dict[int, tuple[float, list[Abort]]] = {}  # left at, rows

    async def claim(self, incarnation: int) -> bool:
        if incarnation in self._last_beats:
            return False
        self._last_beats[incarnation] = self._clock()
        return True

    async def beat(self, incarnation: int) -> HeartbeatReply:
        now = self._clock()
        last = self._last_beats.get(incarnation)
        self._last_beats[incarnation] = now
        self._last_beats = {
            number: beaten for number, beaten in self._last_beats.items() if now - beaten < ENTRY_TTL_S
        }
        dead = [number for number, beaten in self._last_beats.items() if now - beaten >= INCARNATION_TTL_S]
        dead.sort(key=self._last_beats.__getitem__)
        left_at, aborts = self._aborts.pop(incarnation, (now, []))
        return HeartbeatReply(
            was_alive=last is not None and now - last < INCARNATION_TTL_S,
            dead=frozenset(dead[:MAX_DEAD]),
            aborts=tuple(aborts) if now - left_at < ABORTS_TTL_S else (),
        )

    async def publish(self, incarnation: int, changes: Sequence[Changes], dead: frozenset[int]) -> int:
        num_changed = 0
        gone = dead | {incarnation}
        for root, stored, evicted in changes:
            for key in ((root, block_hash) for block_hash in stored):
                holders = self._holders_of(key)
                others = [holder for holder in holders if holder not in gone]
                self._write(key, [*others, incarnation][-MAX_HOLDERS:])
                num_changed += incarnation not in holders
            for key in ((root, block_hash) for block_hash in evicted):
                holders = self._holders_of(key)
                if incarnation in holders:
                    self._write(key, [holder for holder in holders if holder not in gone])
                    num_changed += 1
        return num_changed

    async def look_up(
        self, root: bytes, block_hashes: Sequence[bytes], incarnations: Sequence[int]
    ) -> Mapping[int, int]:
        chain = [self._holders_of((root, block_hash)) for block_hash in indexed(block_hashes)]

        def depth(incarnation: int) -> int:
            return len(list(takewhile(lambda holders: incarnation in holders, chain)))

        depths = {incarnation: depth(incarnation) * INDEX_EVERY for incarnation in incarnations}
        return {incarnation: blocks for incarnation, blocks in depths.items() if blocks}

    async def leave_aborts(self, incarnation: int, aborts: Sequence[Abort]) -> None:
        now = self._clock()
        left_at, before = self._aborts.get(incarnation, (now, []))
        kept = before if now - left_at < ABORTS_TTL_S else []
        self._aborts[incarnation] = (now, [*kept, *aborts][-MAX_ABORTS:])

    def _holders_of(self, key: Key) -> list[int]:
        now = self._clock()
        told_at, holders = self._entries.get(key, (now, []))
        return holders if now - told_at < ENTRY_TTL_S else []

    def _write(self, key: Key, holders: list[int]) -> None:
        if holders:
            self._entries[key] = (self._clock(), holders)
        else:
            self._entries.pop(key, None)
