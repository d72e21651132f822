"""A prefix cache that whole prompts are put into and asked for, without pool or scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from engine.block_chain import BlockChain
from engine.prefix_cache import PrefixCache
from engine.prefix_stats import PrefixStats
from tests.builders import BLOCK_SIZE, ROOT


class Shelf:
    """Hands out block numbers 1, 2, 3, … in the order in which blocks get names."""

    def __init__(self, num_blocks: int = 100) -> None:
        self.cache = PrefixCache(BLOCK_SIZE, num_blocks)
        self._unused = count(1)

    def put(self, prompt: Iterable[int], root: bytes = ROOT) -> list[int]:
        """Computes the full blocks; the blocks that hold them."""
        held: list[int] = []
        for named in chain_of(prompt, root):
            found = self.cache.match([named], BLOCK_SIZE + 1)
            block = found[0] if found else next(self._unused)
            assert self.cache.register(named, block) == block
            held.append(block)
        return held

    def evict(self, blocks: Sequence[int]) -> None:
        """Child first."""
        for block in reversed(blocks):
            self.cache.forget(block)
            self.cache.check_integrity()

    def ask(self, prompt: Iterable[int], root: bytes = ROOT) -> PrefixStats:
        token_ids = list(prompt)
        chain = chain_of(token_ids, root)
        num_hits = len(self.cache.match(chain, len(token_ids)))
        lookup = self.cache.look_up(chain, num_hits=num_hits, num_tokens=len(token_ids))
        self.cache.check_integrity()
        assert lookup.queries_tokens == len(token_ids)
        return lookup


def chain_of(prompt: Iterable[int], root: bytes = ROOT) -> BlockChain:
    return BlockChain(root, list(prompt), BLOCK_SIZE)
