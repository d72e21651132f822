"""What the prompts of the last minute have in common: the prefixes that a new replica had best compute first.

A prefix is *shared* if at least two requests of late began with it. Of each prompt the longest shared one is
kept, in whole indexed blocks, and nothing of what is its own. A prompt is noted once it has been computed:
what its replica died of is not known here, and so computed nowhere unasked.
Block hashes begin at a tenant's root: two tenants that send the same share nothing, unless it is public.
Failure mode: of a longer prefix only `MAX_TOKENS` are known; and one that fewer than 1 in 250 prompts begin
with, if all are long, is forgotten before it comes again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from cluster.index.prefix_index import INDEX_EVERY
from engine.config import BLOCK_SIZE

HALF_LIFE_S = 30.0
KEPT_FOR_S = 60.0
SHARED = 1.5
"""Requests, as they fade: two of them within a half-life."""
MAX_TOKENS = 4096
"""Of one prefix; a public one that is longer is kept whole."""
MAX_KEPT = 64
"""Prefixes, about 12 MiB if all are as long as may be. Those that came the longest ago go first."""
MAX_SEEN = 16_384
"""Indexed blocks, those of a million tokens: about 4 MiB. Those that came the longest ago go first."""


class Truncatable(Protocol):
    """What can be cut."""

    def beginning(self, num_blocks: int) -> Self:
        """Of its first blocks; more of them where a public prefix would be cut."""


P = TypeVar("P", bound=Truncatable)


class _Seen(NamedTuple):
    requests: float
    """As they had faded at `at`."""
    at: float

    def requests_at(self, now: float) -> float:
        return self.requests * float(0.5 ** ((now - self.at) / HALF_LIFE_S))


class _Kept(NamedTuple, Generic[P]):
    at: float
    hashes: Sequence[bytes]
    """Of its indexed blocks."""
    prompt: P


class HotPrefixes(Generic[P]):
    """Owns what one gateway knows of its prompts' prefixes. `now` is monotonic, in seconds.

    A prompt's blocks are seen children first, and so forgotten children first. So of a block that is known
    the parents are, too, and with no fewer requests.
    """

    def __init__(self, *, max_kept: int = MAX_KEPT, max_seen: int = MAX_SEEN) -> None:
        self._max_kept = max_kept
        self._max_seen = max_seen
        self._kept: OrderedDict[bytes, _Kept[P]] = OrderedDict()
        """By the last of its blocks; the oldest first."""
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        """By its hash; the oldest first."""

    def __len__(self) -> int:
        """Prefixes that are kept."""
        return len(self._kept)

    @property
    def num_seen(self) -> int:
        """Indexed blocks that are known."""
        return len(self._seen)

    def note(self, prompt: P, indexed_hashes: Sequence[bytes], now: float) -> None:
        """A request whose prompt has these indexed blocks, from its first on. O(blocks)."""
        hashes = indexed_hashes[: MAX_TOKENS // (INDEX_EVERY * BLOCK_SIZE)]
        num_shared = sum(self._count(block_hash, now) >= SHARED for block_hash in reversed(hashes))
        while len(self._seen) > self._max_seen:
            self._seen.popitem(last=False)
        self._forget_until(now - KEPT_FOR_S)
        if num_shared:
            self._keep(prompt, hashes[:num_shared], now)

    def hottest(self, num_prefixes: int, least: float, now: float) -> list[P]:
        """The prefixes with the most tokens × requests, each as far as at least `least` requests have it.

        Each counts with what those before it do not hold: of many that begin alike the common part counts
        once. O(`num_prefixes` × blocks that are kept).
        """
        self._forget_until(now - KEPT_FOR_S)
        worth = self._requests(least, now)
        chosen: list[P] = []
        while worth and len(chosen) < num_prefixes:
            best = max(self._kept.values(), key=lambda one: sum(worth.get(name, 0.0) for name in one.hashes))
            num_indexed = max(index for index, name in enumerate(best.hashes, start=1) if name in worth)
            chosen.append(best.prompt.beginning(INDEX_EVERY * num_indexed))
            for name in best.hashes:
                worth.pop(name, None)
        return chosen

    def _count(self, block_hash: bytes, now: float) -> float:
        """One request more begins with it."""
        seen = self._seen.pop(block_hash, None)
        requests = 1.0 if seen is None else 1.0 + seen.requests_at(now)
        self._seen[block_hash] = _Seen(requests, now)
        return requests

    def _keep(self, prompt: P, hashes: Sequence[bytes], now: float) -> None:
        kept = self._kept.pop(hashes[-1], None)
        known = kept.prompt if kept else prompt.beginning(INDEX_EVERY * len(hashes))
        self._kept[hashes[-1]] = _Kept(now, hashes, known)
        if len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def _requests(self, least: float, now: float) -> dict[bytes, float]:
        """That have each block that is kept; without those that fewer have."""
        names = {name for one in self._kept.values() for name in one.hashes if name in self._seen}
        requests = {name: self._seen[name].requests_at(now) for name in names}
        return {name: count for name, count in requests.items() if count >= least}

    def _forget_until(self, time: float) -> None:
        while self._kept and next(iter(self._kept.values())).at < time:
            self._kept.popitem(last=False)
