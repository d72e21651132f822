"""Which block holds the KV of which prefix: hash → block, for computed full blocks only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from engine.block_hash import BlockHash
from engine.block_pool import IntegrityError


class CachedBlock(NamedTuple):
    block_hash: BlockHash
    parent: BlockHash | None
    """None for the first block of a prompt."""


class PrefixCache:
    """Owns the names of blocks. Who holds a block, and when it is reused, is the pool's affair.

    Holdings are prefix-closed: a cached block's parent is cached, too. That holds because a request
    names its blocks parent first and always sits on the named ones (`register` tells it its twin),
    and because blocks are released child first, so that the child is evicted before the parent.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._block_of: dict[BlockHash, int] = {}
        self._cached: dict[int, CachedBlock] = {}
        self.queries_tokens_total = 0
        """Prompt tokens looked up, each request once."""
        self.hits_tokens_total = 0

    def match(self, hashes: Iterable[BlockHash], num_tokens: int) -> list[int]:
        """Blocks of the longest cached prefix, in order.

        At most ⌊(num_tokens − 1) / block_size⌋: one token is left to compute, for its logits.
        """
        blocks: list[int] = []
        for block_hash in islice(hashes, (num_tokens - 1) // self._block_size):
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def count_lookup(self, *, num_prompt_tokens: int, num_hit_tokens: int) -> None:
        self.queries_tokens_total += num_prompt_tokens
        self.hits_tokens_total += num_hit_tokens

    def register(self, block_hash: BlockHash, parent: BlockHash | None, block: int) -> int:
        """Names a *computed* full block. Returns the block that bears the name: `block`, or its twin.

        A twin is another block with the same content, registered earlier; the caller moves to it.
        """
        twin = self._block_of.setdefault(block_hash, block)
        if twin == block:
            self._cached[block] = CachedBlock(block_hash, parent)
        return twin

    def forget(self, block: int) -> None:
        """The block is reused for something else."""
        del self._block_of[self._cached.pop(block).block_hash]

    def check_integrity(self) -> None:
        """Raises IntegrityError unless names and blocks agree and holdings are prefix-closed. O(cached)."""
        if len(self._block_of) != len(self._cached):
            raise IntegrityError("names and named blocks differ in number")
        for block, cached in self._cached.items():
            if self._block_of.get(cached.block_hash) != block:
                raise IntegrityError(f"block {block} is not where its name leads")
            if cached.parent is not None and cached.parent not in self._block_of:
                raise IntegrityError(f"block {block} is cached without its parent")
