"""Which block holds the KV of which prefix: name → block, for computed full blocks only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from engine.block_chain import BlockChain, NamedBlock
from engine.block_hash import BlockHash
from engine.block_pool import IntegrityError
from engine.prefix_history import PrefixHistory
from engine.prefix_stats import PrefixStats


class PrefixCache:
    """Owns the names of blocks. Who holds a block, and when it is reused, is the pool's affair.

    A name is believed only with what it stands for: hit and twin have the same parent, kin and
    token ids, so two contents that share a hash cost a miss and never give one the KV of the other.

    Holdings are prefix-closed: a cached block's parent is cached, too. That holds because a request
    names its blocks parent first and always sits on the named ones (`register` tells it its twin),
    and because blocks are released child first, so that the child is evicted before the parent.
    So, too, a cached block's parent hash always means the same parent.
    """

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self.stats = PrefixStats()
        """Of all lookups since the start."""
        self._block_size = block_size
        self._block_of: dict[BlockHash, int] = {}
        self._cached: dict[int, NamedBlock] = {}
        self._history = PrefixHistory(block_size, num_blocks)

    def match(self, chain: Iterable[NamedBlock], num_tokens: int) -> list[int]:
        """Blocks of the longest cached prefix, in order.

        At most ⌊(num_tokens − 1) / block_size⌋: one token is left to compute, for its logits.
        """
        blocks: list[int] = []
        for named in islice(chain, self._num_cacheable(num_tokens)):
            block = self._block_of.get(named.block_hash)
            if block is None or self._cached[block] != named:
                break
            blocks.append(block)
        return blocks

    def _num_cacheable(self, num_tokens: int) -> int:
        return (num_tokens - 1) // self._block_size

    def look_up(self, chain: BlockChain, *, num_hits: int, num_tokens: int) -> PrefixStats:
        """Explains and counts a prompt of `num_tokens` that found its first `num_hits` blocks cached."""
        blocks = list(islice(chain, self._num_cacheable(num_tokens)))
        lookup = self._history.explain(blocks, num_hits=num_hits, num_tokens=num_tokens)
        self.stats += lookup
        return lookup

    def register(self, named: NamedBlock, block: int) -> int | None:
        """Names a *computed* full block. Returns the block that bears the name: `block`, or its twin.

        A twin is another block with the same content, registered earlier; the caller moves to it.
        None if the name is taken by other content: `block` stays unnamed, and so must what follows it.
        """
        holder = self._block_of.get(named.block_hash)
        if holder is not None:
            return holder if self._cached[holder] == named else None
        self._block_of[named.block_hash] = block
        self._cached[block] = named
        self._history.cached(named)
        return block

    def forget(self, block: int) -> NamedBlock:
        """The block, whose name is returned, is reused for something else: a ghost remains."""
        named = self._unname(block)
        self._history.evicted(named)
        return named

    def drop(self, block: int) -> NamedBlock:
        """The block, which has no children, is not what its name says: nothing remains. Returns that name."""
        named = self._unname(block)
        self._history.dropped(named)
        return named

    def _unname(self, block: int) -> NamedBlock:
        named = self._cached.pop(block)
        del self._block_of[named.block_hash]
        return named

    def clear(self) -> None:
        """No block has a name, and none had one: as at the start, but for the figures."""
        self._block_of.clear()
        self._cached.clear()
        self._history.clear()

    def has_children(self, block: int) -> bool:
        """Whether a cached block continues this one. O(known children)."""
        named = self._cached.get(block)
        return named is not None and any(
            child in self._block_of for child in self._history.children(named.block_hash)
        )

    def check_integrity(self) -> None:
        """Raises IntegrityError unless names and blocks agree and holdings are prefix-closed. O(known)."""
        if len(self._block_of) != len(self._cached):
            raise IntegrityError("names and named blocks differ in number")
        for block, named in self._cached.items():
            if self._block_of.get(named.block_hash) != block:
                raise IntegrityError(f"block {block} is not where its name leads")
            if not self._has_its_parent(named):
                raise IntegrityError(f"block {block} is cached without its parent")
        self._history.check_integrity(self._cached.values())

    def _has_its_parent(self, named: NamedBlock) -> bool:
        parent = self._block_of.get(BlockHash(named.parent))
        return named.depth == 0 or (parent is not None and self._cached[parent].depth == named.depth - 1)
