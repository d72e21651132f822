"""Block tables: how requests come to hold blocks, and give them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.block_pool import BlockPool, IntegrityError
from engine.config import EngineConfig
from engine.prefix_cache import PrefixCache
from engine.request_state import RequestState


class BlockAllocator:
    """Owns the pool and the prefix cache, and keeps the two and the block tables in step."""

    def __init__(self, config: EngineConfig) -> None:
        self._block_size = config.block_size
        self._is_caching = config.enable_prefix_caching
        self.cache = PrefixCache(config.block_size)
        self.pool = BlockPool(config.num_blocks, on_evict=self.cache.forget)

    def num_missing(self, state: RequestState, num_tokens: int) -> int:
        """Blocks that the table lacks to hold `num_tokens`."""
        return max(0, -(-num_tokens // self._block_size) - len(state.block_table))

    def num_slots(self, state: RequestState, num_more_blocks: int = 0) -> int:
        return (len(state.block_table) + num_more_blocks) * self._block_size

    def match(self, state: RequestState) -> list[int]:
        """Blocks of the longest cached prefix of a request that holds none."""
        return self.cache.match(state.block_hashes(), state.num_tokens)

    def num_taken(self, state: RequestState, matched: list[int], num_tokens: int) -> int:
        """Available blocks that `num_tokens` would take, if it starts on `matched`."""
        revived = sum(self.pool.ref_count(block) == 0 for block in matched)
        return self.num_missing(state, num_tokens) - len(matched) + revived

    def adopt(self, state: RequestState, matched: list[int]) -> None:
        """Starts a request's table with cached blocks: their tokens are computed."""
        for block in matched:
            self.pool.share(block)
        state.block_table.extend(matched)
        state.num_registered_blocks = len(matched)
        state.num_computed_tokens = len(matched) * self._block_size
        if state.num_cached_tokens is None:
            self._count_first_lookup(state)

    def _count_first_lookup(self, state: RequestState) -> None:
        state.num_cached_tokens = min(state.num_computed_tokens, state.num_prompt_tokens)
        is_resumed = bool(state.request.output_token_ids)
        if self._is_caching and not is_resumed:  # a resumed request was counted where it began
            self.cache.count_lookup(
                num_prompt_tokens=state.num_prompt_tokens, num_hit_tokens=state.num_cached_tokens
            )

    def grow(self, state: RequestState, num_tokens: int) -> None:
        """Extends the table to hold `num_tokens`."""
        for _ in range(self.num_missing(state, num_tokens)):
            state.block_table.append(self.pool.allocate())

    def register(self, state: RequestState) -> None:
        """Names the full blocks that were computed since. Where a twin is cached, it is used instead.

        Moving to the twin frees a block, and keeps holdings prefix-closed: who registers a child
        always holds the registered parent.
        """
        if not self._is_caching:
            return
        for index in range(state.num_registered_blocks, state.num_computed_tokens // self._block_size):
            block = state.block_table[index]
            parent = state.block_hash(index - 1) if index else None
            named = self.cache.register(state.block_hash(index), parent, block)
            if named == block:
                self.pool.mark_cached(block)
            else:
                self.pool.share(named)
                self.pool.release(block)
                state.block_table[index] = named
            state.num_registered_blocks = index + 1

    def release(self, state: RequestState) -> None:
        """Gives all blocks back, child first."""
        for block in reversed(state.block_table):
            self.pool.release(block)
        state.block_table.clear()

    def num_empty_slots(self, holders: Iterable[RequestState]) -> int:
        """Slots without a token in the holders' blocks. Shared blocks are full: nothing counts twice."""
        return sum(self.num_slots(state) - state.num_computed_tokens for state in holders)

    @property
    def num_owned_slots(self) -> int:
        return self.pool.num_owned * self._block_size

    def check_integrity(self, holders: Iterable[RequestState]) -> None:
        """Raises IntegrityError unless pool, cache and the holders' tables agree."""
        self.pool.check_integrity()
        self.cache.check_integrity()
        held = Counter(block for state in holders for block in state.block_table)
        for block in range(self.pool.num_blocks + 1):
            if held[block] != self.pool.ref_count(block):
                raise IntegrityError(
                    f"block {block} has ref count {self.pool.ref_count(block)}, but {held[block]} holders"
                )
