"""Block tables: how requests come to hold blocks, and give them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.block_events import NOBODY, BlockListener
from engine.block_pool import BlockPool, IntegrityError
from engine.config import EngineConfig
from engine.prefix_cache import PrefixCache
from engine.request_state import RequestState


class BlockAllocator:
    """Owns the pool and the prefix cache, and keeps the two and the block tables in step.

    `listener` is told of every block that gets or loses its name.
    """

    def __init__(self, config: EngineConfig, listener: BlockListener = NOBODY) -> None:
        self._listener = listener
        self._block_size = config.block_size
        self._is_caching = config.enable_prefix_caching
        self.cache = PrefixCache(config.block_size, config.num_blocks)
        self.pool = BlockPool(config.num_blocks, on_evict=self._evict)

    def _evict(self, block: int) -> None:
        self._listener.evicted(self.cache.forget(block))

    def num_missing(self, state: RequestState, num_tokens: int) -> int:
        """Blocks that the table lacks to hold `num_tokens`."""
        return max(0, -(-num_tokens // self._block_size) - len(state.block_table))

    def num_slots(self, state: RequestState) -> int:
        return len(state.block_table) * self._block_size

    def match(self, state: RequestState) -> list[int]:
        """Blocks of the longest cached prefix of a request that holds none."""
        return self.cache.match(state.chain, state.num_tokens)

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
            state.prefix_lookup = self.cache.look_up(
                state.chain, num_hits=len(state.block_table), num_tokens=state.num_prompt_tokens
            )

    def num_outstanding(self, state: RequestState) -> int:
        """Blocks promised to a running request and not yet taken, copies for its siblings included."""
        promised = self.num_missing(state, state.num_promised_tokens) + state.num_unforked
        return promised + self.must_copy(state, state.num_computed_tokens)

    def must_copy(self, state: RequestState, position: int) -> bool:
        """Whether the block that `position` is written to is seen by others, too."""
        index = position // self._block_size
        return index < len(state.block_table) and self.pool.ref_count(state.block_table[index]) > 1

    def grow(self, state: RequestState, start: int, end: int) -> tuple[int, int] | None:
        """Makes the table fit to write positions `[start, end)`.

        Returns (source, destination) if a shared block has to be copied first: copy on write.
        """
        copy = self._copy(state, start // self._block_size) if self.must_copy(state, start) else None
        for _ in range(self.num_missing(state, end)):
            state.block_table.append(self.pool.allocate())
        return copy

    def _copy(self, state: RequestState, index: int) -> tuple[int, int]:
        source, own = state.block_table[index], self.pool.allocate()
        state.block_table[index] = own
        self.pool.release(source)
        return source, own

    def share(self, leader: RequestState, sibling: RequestState) -> None:
        """The sibling starts on the leader's blocks; who writes into a shared one copies it first."""
        for block in leader.block_table:
            self.pool.share(block)
        sibling.block_table.extend(leader.block_table)
        sibling.num_registered_blocks = leader.num_registered_blocks

    def register(self, state: RequestState) -> None:
        """Names the full blocks that were computed since. Where a twin is cached, it is used instead.

        Moving to the twin frees a block, and keeps holdings prefix-closed: who registers a child
        always holds the registered parent.
        """
        if not self._is_caching:
            return
        for index in range(state.num_registered_blocks, state.num_computed_tokens // self._block_size):
            named, block = state.chain[index], state.block_table[index]
            holder = self.cache.register(named, block)
            if holder is None:
                return
            if holder == block:
                self.pool.mark_cached(block)
                self._listener.stored(state.request.hash_root, named)
            else:
                self.pool.share(holder)
                self.pool.release(block)
                state.block_table[index] = holder
            state.num_registered_blocks = index + 1

    def release(self, state: RequestState) -> None:
        """Gives all blocks back, child first."""
        for block in reversed(state.block_table):
            self.pool.release(block)
        state.block_table.clear()

    def discard(self, state: RequestState) -> None:
        """Gives the blocks of a failed request back, and what it alone vouches for loses its name.

        So a prefix that makes requests fail is computed anew, not handed on.
        """
        for block in reversed(state.block_table):
            is_own = self.pool.is_cached(block) and self.pool.ref_count(block) == 1
            if is_own and not self.cache.has_children(block):
                self._listener.evicted(self.cache.drop(block))
                self.pool.unmark_cached(block)
            self.pool.release(block)
        state.block_table.clear()

    def clear_cache(self) -> None:
        """Nothing is cached any more. Nobody may hold a block."""
        self.cache.clear()
        self.pool.clear_cached()
        self._listener.cleared()

    def num_empty_slots(self, holders: Iterable[RequestState]) -> int:
        """Slots without a token in the holders' blocks; a shared one counts once, by its fullest use."""
        empty: dict[int, int] = {}
        for state in holders:
            for index in range(state.num_computed_tokens // self._block_size, len(state.block_table)):
                block, filled = state.block_table[index], state.num_computed_tokens - index * self._block_size
                slots = self._block_size - max(0, filled)
                empty[block] = min(slots, empty.get(block, slots))
        return sum(empty.values())

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
