"""Which KV block is in which state: numbers only, no tensors and no hashes.

A block is in exactly one state: *free* (its content means nothing), *evictable* (cached, held by
nobody, may be shared or reused), or *owned* (ref count ≥ 1). Block 0 is the null block, which takes
the writes of padding; it is in no state and is never handed out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

NULL_BLOCK = 0


class IntegrityError(Exception):
    """Bookkeeping contradicts itself: a fault of ours, never of a request."""


class BlockPool:
    """Owns the state and the ref count of every block.

    `on_evict(block)` is called when an evictable block is about to be reused, so that whoever knows
    its content by name forgets it. All operations are O(1), but `check_integrity`.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self._on_evict = on_evict
        self._ref_counts = [0] * num_blocks
        self._cached: set[int] = set()
        self._free = deque(range(NULL_BLOCK + 1, num_blocks))
        self.num_evictions = 0
        # In order of release: the first is the least recently used. Not a dict: taking its first
        # again and again scans all that was deleted before.
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def num_blocks(self) -> int:
        """Without the null block."""
        return len(self._ref_counts) - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free + evictable."""
        return len(self._free) + len(self._evictable)

    @property
    def num_owned(self) -> int:
        return self.num_blocks - self.num_available

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def allocate(self) -> int:
        """A block for one owner: the longest free, else the least recently used evictable.

        Raises IndexError when none is available; ask `num_available` first.
        """
        if self._free:
            block = self._free.popleft()
        elif self._evictable:
            block = self._evict()
        else:
            raise IndexError("no block is free or evictable")
        self._ref_counts[block] = 1
        return block

    def _evict(self) -> int:
        block, _ = self._evictable.popitem(last=False)
        self._cached.remove(block)
        self.num_evictions += 1
        self._on_evict(block)
        return block

    def mark_cached(self, block: int) -> None:
        """The content of this owned block has a name now: once released it stays, evictable."""
        if self._ref_counts[block] == 0:
            raise IntegrityError(f"block {block} is cached while nobody owns it")
        self._cached.add(block)

    def unmark_cached(self, block: int) -> None:
        """The content of this owned block has no name any more: once released it is free."""
        if self._ref_counts[block] == 0:
            raise IntegrityError(f"block {block} loses its name while nobody owns it")
        self._cached.discard(block)

    def clear_cached(self) -> None:
        """No block has a name any more: the evictable ones are free."""
        self._free.extend(self._evictable)
        self._evictable.clear()
        self._cached.clear()

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def share(self, block: int) -> None:
        """One more owner of a cached or owned block."""
        if block not in self._cached and self._ref_counts[block] == 0:
            raise IntegrityError(f"block {block} is shared but neither cached nor owned")
        self._evictable.pop(block, None)
        self._ref_counts[block] += 1

    def release(self, block: int) -> None:
        """One owner less. The last one's release makes the block evictable if cached, else free."""
        if self._ref_counts[block] == 0:
            raise IntegrityError(f"block {block} is released but not owned")
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            if block in self._cached:
                self._evictable[block] = None
            else:
                self._free.append(block)

    def check_integrity(self) -> None:
        """Raises IntegrityError unless each block is in exactly one state. O(num_blocks)."""
        free, evictable = set(self._free), set(self._evictable)
        owned = {block for block, count in enumerate(self._ref_counts) if count > 0}
        if any(count < 0 for count in self._ref_counts):
            raise IntegrityError("a ref count is negative")
        if NULL_BLOCK in free | evictable | owned:
            raise IntegrityError("the null block was handed out")
        if len(self._free) + len(evictable) + len(owned) != self.num_blocks:
            raise IntegrityError(
                f"{len(self._free)} free + {len(evictable)} evictable + {len(owned)} owned "
                f"are not {self.num_blocks} blocks"
            )
        if len(free | evictable | owned) != self.num_blocks:
            raise IntegrityError("a block is in two states")
        if self._cached & free or not evictable <= self._cached:
            raise IntegrityError("a cached block is free, or an evictable one is not cached")
