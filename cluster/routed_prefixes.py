"""What this gateway routed lately, and the prefix index may not know yet.

A replica's claims reach the index only after it has computed the blocks and published them. A burst of one
cold prompt would meet no claim until then and be computed on every replica; here the second request finds
where the first went. And how much of the traffic begins alike tells whether a second copy would be used.
Failure mode: a prompt that waits longer than `REMEMBERED_S` before it is computed
is known to nobody for a while, and may be computed twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from cluster.index.prefix_index import INDEX_EVERY

REMEMBERED_S = 2.0
MAX_HASHES = 131_072
"""8 million tokens routed within `REMEMBERED_S`; about 25 MiB."""

UNLIKE_REQUESTS = 8
"""Added to those that were routed before a share is taken: of a few requests it would tell nothing."""


class _Note(NamedTuple):
    at: float
    replica_id: str
    indexed_hashes: Sequence[bytes]


class RoutedPrefixes:
    """Owns the notes of one gateway. `now` is monotonic, in seconds.

    A chain is noted and forgotten as a whole, so what is known of one is always its beginning; that is what
    lets `num_blocks` search by bisection. At most `max_hashes` are kept beside the latest note's; the
    oldest notes go first.
    """

    def __init__(self, max_hashes: int = MAX_HASHES) -> None:
        self._max_hashes = max_hashes
        self._notes: deque[_Note] = deque()  # the oldest first
        self._num_hashes = 0
        self._noted: dict[str, Counter[bytes]] = {}
        """By replica: in how many notes each hash is."""

    def __len__(self) -> int:
        """Hashes of all notes, those of several counted as often."""
        return self._num_hashes

    def note(self, replica_id: str, indexed_hashes: Sequence[bytes], now: float) -> None:
        """A prompt with these indexed blocks, from its first on, goes to the replica."""
        if not indexed_hashes:
            return
        self._forget_until(now - REMEMBERED_S)
        self._notes.append(_Note(now, replica_id, indexed_hashes))
        self._num_hashes += len(indexed_hashes)
        self._noted.setdefault(replica_id, Counter()).update(indexed_hashes)
        while self._num_hashes > self._max_hashes and len(self._notes) > 1:
            self._forget_oldest()

    def num_blocks(self, replica_id: str, block_hashes: Sequence[bytes], now: float) -> int:
        """Blocks of the chain's beginning that went to the replica lately, a multiple of `INDEX_EVERY`.

        `block_hashes` are those of all full blocks. O(log(blocks)).
        """
        self._forget_until(now - REMEMBERED_S)
        noted = self._noted.get(replica_id)
        if not noted:
            return 0
        indexed = range(INDEX_EVERY - 1, len(block_hashes), INDEX_EVERY)
        return INDEX_EVERY * bisect_left(indexed, True, key=lambda index: block_hashes[index] not in noted)

    def share(self, block_hashes: Sequence[bytes], num_blocks: int, now: float) -> float:
        """Part of the requests routed lately, anywhere, that begin with the chain's first `num_blocks`.

        In [0, 1), and 0 if these hold no indexed block. O(replicas).
        """
        self._forget_until(now - REMEMBERED_S)
        end = num_blocks - num_blocks % INDEX_EVERY
        if end == 0:
            return 0.0
        num_alike = sum(noted[block_hashes[end - 1]] for noted in self._noted.values())
        return num_alike / (len(self._notes) + UNLIKE_REQUESTS)

    def forget(self, replica_id: str) -> None:
        """The replica is gone. O(notes)."""
        if self._noted.pop(replica_id, None) is not None:
            self._notes = deque(note for note in self._notes if note.replica_id != replica_id)
            self._num_hashes = sum(len(note.indexed_hashes) for note in self._notes)

    def _forget_until(self, time: float) -> None:
        while self._notes and self._notes[0].at < time:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        note = self._notes.popleft()
        self._num_hashes -= len(note.indexed_hashes)
        noted = self._noted[note.replica_id]
        for block_hash in note.indexed_hashes:
            noted[block_hash] -= 1
            if not noted[block_hash]:
                del noted[block_hash]
        if not noted:
            del self._noted[note.replica_id]
