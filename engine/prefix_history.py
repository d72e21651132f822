"""Why a prefix was not cached: what is cached, what was, and what came after what.

Explains only. What is served depends on `PrefixCache` alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from engine.block_chain import NamedBlock
from engine.block_hash import BlockHash
from engine.block_pool import IntegrityError
from engine.prefix_stats import PrefixStats
from engine.seen_hashes import SeenHashes

GHOSTS_PER_BLOCK = 4
MAX_GHOSTS = 65_536
SEEN_PER_BLOCK = 256
MAX_SEEN = 2**20
MAX_COMPARED = 8
"""Blocks that a prompt is compared with to find where it diverged."""

_TOKEN_BYTES = 4


class PrefixHistory:
    """Owns the content of cached blocks and of *ghosts*: blocks that were evicted not long ago.

    Ghosts are at most four times the pool's blocks and 65,536, the longest evicted goes first. Whether
    a block was cached *ever* is kept longer, as 8 bytes each for up to 2^20 (`SeenHashes`); beyond
    that, `evicted` and the attainable hits are lower bounds.

    Memory: about 0.7 KiB a cached block and ghost, 8 MiB at most for what was seen. All operations are
    O(1), but `explain`, which is O(blocks of the prompt), and `dropped`, which is O(ghosts behind).

    Blocks are only ever compared with their kin, so no tenant is told about another.
    """

    def __init__(self, block_size: int, num_blocks: int, *, max_ghosts: int | None = None) -> None:
        self._block_size = block_size
        bound = min(GHOSTS_PER_BLOCK * num_blocks, MAX_GHOSTS)
        self._max_ghosts = bound if max_ghosts is None else max_ghosts
        self._known: dict[BlockHash, NamedBlock] = {}  # cached blocks and ghosts
        self._ghosts: OrderedDict[BlockHash, None] = OrderedDict()  # the longest evicted first
        self._children: dict[bytes, dict[BlockHash, None]] = {}
        """By kin: the known blocks hashed from it, the latest used last."""
        self._branched: dict[bytes, dict[BlockHash, None]] = {}
        """By parent hash: the known blocks behind it that are not its kin. Each tenant's own kin: they are
        known here to be children, and compared with none."""
        self._seen = SeenHashes(min(SEEN_PER_BLOCK * num_blocks, MAX_SEEN))

    # --- what happens to blocks --------------------------------------------------------------

    def cached(self, block: NamedBlock) -> None:
        self._remove(block.block_hash)
        self._known[block.block_hash] = block
        for siblings, key in self._families(block):
            siblings.setdefault(key, {})[block.block_hash] = None
        self._seen.add(block.block_hash)

    def evicted(self, block: NamedBlock) -> None:
        self._ghosts[block.block_hash] = None
        if len(self._ghosts) > self._max_ghosts:
            self._remove(next(iter(self._ghosts)))

    def dropped(self, block: NamedBlock) -> None:
        """It should never have been cached, nor the ghosts behind it."""
        doomed = [block.block_hash]
        while doomed:
            block_hash = doomed.pop()
            doomed.extend(self.children(block_hash))
            self._remove(block_hash)
            self._seen.discard(block_hash)

    def _remove(self, block_hash: BlockHash) -> None:
        block = self._known.pop(block_hash, None)
        if block is None:
            return
        self._ghosts.pop(block_hash, None)
        for siblings, key in self._families(block):
            del siblings[key][block_hash]
            if not siblings[key]:
                del siblings[key]

    def _families(self, block: NamedBlock) -> Iterator[tuple[dict[bytes, dict[BlockHash, None]], bytes]]:
        """Where the block is listed, and under what."""
        yield self._children, block.kin
        if block.kin != block.parent:
            yield self._branched, block.parent

    def clear(self) -> None:
        """As at the start."""
        self._known.clear()
        self._ghosts.clear()
        self._children.clear()
        self._branched.clear()
        self._seen.clear()

    def children(self, block_hash: BlockHash) -> Iterable[BlockHash]:
        """The known blocks behind it."""
        return chain(self._children.get(block_hash, ()), self._branched.get(block_hash, ()))

    # --- what a lookup is told ---------------------------------------------------------------

    def explain(self, blocks: Sequence[NamedBlock], *, num_hits: int, num_tokens: int) -> PrefixStats:
        """What became of the `num_tokens` of a prompt.

        `blocks` are those that could be cached, of which the first `num_hits` were.
        """
        self._use(blocks[:num_hits])
        num_known = self._num_known(blocks, num_hits)
        new = blocks[num_known:]
        diverged_at = self._diverged_at(new[0]) if new else None
        num_new_tokens = len(new) * self._block_size
        return PrefixStats(
            hit_tokens=num_hits * self._block_size,
            evicted_tokens=(num_known - num_hits) * self._block_size,
            diverged_tokens=0 if diverged_at is None else num_new_tokens,
            cold_tokens=num_new_tokens if diverged_at is None else 0,
            below_block_tokens=num_tokens - len(blocks) * self._block_size,
            diverged_at=diverged_at,
        )

    def _use(self, hits: Iterable[NamedBlock]) -> None:
        for block in hits:
            siblings = self._children[block.kin]
            siblings[block.block_hash] = siblings.pop(block.block_hash)

    def _num_known(self, blocks: Sequence[NamedBlock], at_least: int) -> int:
        """Leading blocks that were ever cached. A hash tells of all before it, so the last known decides."""
        for count in range(len(blocks), at_least, -1):
            block_hash = blocks[count - 1].block_hash
            if block_hash in self._known or block_hash in self._seen:
                return count
        return at_least

    def _diverged_at(self, block: NamedBlock) -> int | None:
        """Where in the prompt `block` leaves the known way that it shares most with.

        None if none of its kin is known, or the prompt shares no token at all.
        """
        latest = islice(reversed(self._children.get(block.kin, {})), MAX_COMPARED)
        shared = [_num_shared_tokens(self._known[other].token_ids, block.token_ids) for other in latest]
        if not shared:
            return None
        return (block.depth * self._block_size + max(shared)) or None

    def check_integrity(self, cached: Iterable[NamedBlock]) -> None:
        """Raises IntegrityError unless just these and the ghosts are known. O(known)."""
        names = {block.block_hash for block in cached}
        if not names.isdisjoint(self._ghosts):
            raise IntegrityError("a ghost is cached")
        if len(self._ghosts) > self._max_ghosts:
            raise IntegrityError(f"{len(self._ghosts)} ghosts are more than {self._max_ghosts}")
        if self._known.keys() != names | self._ghosts.keys():
            raise IntegrityError("the known blocks are not the cached ones and the ghosts")
        listed = [
            (name, siblings.get(key, ()))
            for name, block in self._known.items()
            for siblings, key in self._families(block)
        ]
        num_listed = sum(map(len, chain(self._children.values(), self._branched.values())))
        if num_listed != len(listed) or any(name not in siblings for name, siblings in listed):
            raise IntegrityError("the children of blocks are not the known blocks")


def _num_shared_tokens(a: bytes, b: bytes) -> int:
    """Leading token ids that two packed blocks of one size have in common."""
    positions = range(0, len(a), _TOKEN_BYTES)
    return next((i // _TOKEN_BYTES for i in positions if a[i : i + 4] != b[i : i + 4]), len(positions))
