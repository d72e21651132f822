"""What a replica still has to tell the prefix index, decided apart from telling it: told events and `now`.

News are told as they come. A *digest* tells everything again in rounds of `ROUND_S`: it refreshes what
is held, well within an entry's TTL, and finds what was lost on the way, for telling again what the index
knows changes nothing there. News do not refresh their ancestors each time: whoever holds a block holds its
ancestors and tells them in the same round, so they are never older than a round, while a decode of depth d
would tell d blocks again for each new one.

    from      what happened                                        to
    any       a call failed                                        off: nothing is told, queue dropped
    off       a heartbeat was answered                             degraded, tells everything again
    other     a heartbeat found us unknown, too much news waited   degraded, tells everything again
    other     the digest changed something                         degraded
    other     a whole round of the digest changed nothing          exact

Telling everything again is a round without pauses, ahead of the news.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from cluster.index.block_news import Cleared, Event, Evicted, Stored
from cluster.index.digest_round import MAX_BATCH, ROUND_S, DigestRound
from cluster.index.prefix_index import Changes, IndexState

PUBLISH_EVERY_S = 0.1
MAX_QUEUED = 65_536
MAX_EVICTED = 65_536
"""Evicted blocks that are told again; a claim that was lost beyond them lives on until its TTL."""


class IndexBatch(NamedTuple):
    """What is told in one call."""

    kind: Literal["news", "digest"]
    changes: tuple[Changes, ...]
    num_claims: int


class IndexFigures(NamedTuple):
    """What a replica knows of its own part of the index."""

    state: IndexState = "off"
    reason: str = "it was not asked yet"
    """Why it is in this state; free of everything that a client said."""
    queued: int = 0
    """Claims that wait to be told."""
    published_total: int = 0
    """Claims of news that were told."""
    repaired_total: int = 0
    """Claims that the index did not have as told, found by telling everything again."""
    failures_total: int = 0
    """Calls that failed."""


class PrefixPublisher:
    """Owns the account of the indexed blocks that this replica holds, and what of it is still to be told.

    One call at a time: what became of a batch is said before the next is asked for. Memory: about 110
    bytes a held block that is indexed, besides its hash, which the engine holds, too.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}
        """Block hash → root, parents first."""
        self._evicted: OrderedDict[bytes, bytes] = OrderedDict()
        """Evicted since the digest told of it, the longest ago first."""
        self._queue: dict[bytes, bytes] = {}
        """Blocks that the index was told the opposite of: held now and not told, or the other way round."""
        self._round = DigestRound((), now=0.0, period_s=0)
        self._last_batch = float("-inf")
        self._state: IndexState = "off"
        self._reason = IndexFigures().reason
        self._num_published = self._num_repaired = self._num_failures = 0

    @property
    def figures(self) -> IndexFigures:
        return IndexFigures(
            self._state,
            self._reason,
            len(self._queue),
            self._num_published,
            self._num_repaired,
            self._num_failures,
        )

    # --- what the engine says ----------------------------------------------------------------

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Stored(root, block_hash):
                    self._store(block_hash, root)
                case Evicted(block_hash):
                    self._evict(block_hash)
                case Cleared():
                    for block_hash in reversed([*self._held]):
                        self._evict(block_hash)

    def _store(self, block_hash: bytes, root: bytes) -> None:
        if block_hash not in self._held:
            self._held[block_hash] = root
            self._evicted.pop(block_hash, None)
            self._change(block_hash, root)

    def _evict(self, block_hash: bytes) -> None:
        root = self._held.pop(block_hash, None)
        if root is not None:
            self._evicted[block_hash] = root
            if len(self._evicted) > MAX_EVICTED:
                self._evicted.popitem(last=False)
            self._change(block_hash, root)

    def _change(self, block_hash: bytes, root: bytes) -> None:
        """Two changes of one block before it is told cancel out."""
        if self._state != "off" and self._queue.pop(block_hash, None) is None:
            self._queue[block_hash] = root

    # --- what the index is told ----------------------------------------------------------------

    def next_batch(self, now: float) -> IndexBatch | None:
        """What to tell now, if anything: at most every `PUBLISH_EVERY_S`, `MAX_BATCH` claims at most."""
        if self._state == "off" or now - self._last_batch < PUBLISH_EVERY_S:
            return None
        if len(self._queue) > MAX_QUEUED:
            self._tell_all("more news came than could be told", now)
        batch = self._next_of_digest(now) or self._next_news()
        if batch is not None:
            self._last_batch = now
        return batch

    def _next_of_digest(self, now: float) -> IndexBatch | None:
        if self._round.is_over(now):
            if not self._round.num_repaired:
                self._become("exact", "a whole round of the digest found nothing to repair")
            self._round = DigestRound([*self._held, *self._evicted], now, ROUND_S)
        # What is queued is told as news, so that all that a digest changes was lost.
        told = [one for one in self._round.next_slice(now) if one not in self._queue]
        return self._batch("digest", told)

    def _next_news(self) -> IndexBatch | None:
        told = [*islice(self._queue, MAX_BATCH)]
        batch = self._batch("news", told)
        for block_hash in told:
            del self._queue[block_hash]
        return batch

    def _batch(self, kind: Literal["news", "digest"], block_hashes: Sequence[bytes]) -> IndexBatch | None:
        """By root, in the order given; None if there is nothing to tell."""
        stored: dict[bytes, list[bytes]] = {}
        evicted: dict[bytes, list[bytes]] = {}
        for block_hash in block_hashes:
            if block_hash in self._held:
                stored.setdefault(self._held[block_hash], []).append(block_hash)
            elif (root := self._queue.get(block_hash, self._evicted.get(block_hash))) is not None:
                evicted.setdefault(root, []).append(block_hash)
        changes = tuple(
            Changes(root, tuple(stored.get(root, ())), tuple(evicted.get(root, ())))
            for root in dict.fromkeys((*stored, *evicted))
        )
        num_claims = sum(len(change.stored) + len(change.evicted) for change in changes)
        return IndexBatch(kind, changes, num_claims) if changes else None

    def _tell_all(self, reason: str, now: float) -> None:
        self._become("degraded", reason)
        self._queue.clear()
        self._round = DigestRound([*self._held, *self._evicted], now, period_s=0)

    # --- what became of it -----------------------------------------------------------------------

    def acknowledged(self, batch: IndexBatch, num_changed: int) -> None:
        """The index has taken the batch, and changed so many claims."""
        if batch.kind == "news":
            self._num_published += batch.num_claims
            return
        for block_hash in (one for change in batch.changes for one in change.evicted):
            self._evicted.pop(block_hash, None)
        if num_changed:
            self._num_repaired += num_changed
            self._round.num_repaired += num_changed
            self._become("degraded", "the digest found claims that were lost")

    def failed(self, reason: str) -> None:
        """A call failed: it may have told a part, all or nothing."""
        self._num_failures += 1
        self._queue.clear()
        self._become("off", reason)

    def has_beaten(self, was_alive: bool, now: float) -> None:
        """The index answered a heartbeat; `was_alive` as in `HeartbeatReply`."""
        if not was_alive:
            self._tell_all("the index did not know this replica", now)
        elif self._state == "off":
            self._tell_all("the index answers", now)

    def _become(self, state: IndexState, reason: str) -> None:
        self._state, self._reason = state, reason
