"""Prefix cache and pool a second time, by brute force: no hashes, but every prompt that was ever computed.

A block is named by its root and all tokens up to its end. Nothing is bounded: it suits histories with
fewer different blocks than there may be ghosts, and fewer ways to go on than are compared.
"""

from __future__ import annotations

from collections import Counter

from engine.prefix_stats import PrefixStats

Tokens = tuple[int, ...]
Prefix = tuple[bytes, Tokens]


class PrefixModel:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_free = num_blocks
        self.evictable: list[Prefix] = []
        """The least recently released first."""
        self.holders: Counter[Prefix] = Counter()
        self.ever: set[Prefix] = set()
        self._block_size = block_size

    def is_cached(self, prefix: Prefix) -> bool:
        return self.holders[prefix] > 0 or prefix in self.evictable

    def full_blocks(self, root: bytes, tokens: Tokens) -> list[Prefix]:
        ends = range(self._block_size, len(tokens) + 1, self._block_size)
        return [(root, tokens[:end]) for end in ends]

    def look_up(self, root: bytes, tokens: Tokens) -> PrefixStats:
        """What the cache should say before it computes this prompt."""
        size = self._block_size
        usable = self.full_blocks(root, tokens)[: (len(tokens) - 1) // size]
        num_hits = sum(self.is_cached(prefix) for prefix in usable)  # closed: the leading ones
        num_known = sum(prefix in self.ever for prefix in usable)
        num_new = (len(usable) - num_known) * size
        diverged_at = self._diverged_at(root, tokens, num_known * size) if num_new else None
        return PrefixStats(
            hit_tokens=num_hits * size,
            evicted_tokens=(num_known - num_hits) * size,
            diverged_tokens=num_new if diverged_at else 0,
            cold_tokens=0 if diverged_at else num_new,
            below_block_tokens=len(tokens) - len(usable) * size,
            diverged_at=diverged_at,
        )

    def _diverged_at(self, root: bytes, tokens: Tokens, known: int) -> int | None:
        """The longest way that any prompt of this root went along with this one, if one goes on there."""
        others = [other for owner, other in self.ever if owner == root]
        goes_on = any(len(other) > known and other[:known] == tokens[:known] for other in others)
        return (max(shared(tokens, other) for other in others) or None) if goes_on else None

    def compute(self, root: bytes, tokens: Tokens) -> None:
        """A request takes its blocks and names the full ones."""
        size = self._block_size
        full = self.full_blocks(root, tokens)
        hits = [prefix for prefix in full[: (len(tokens) - 1) // size] if self.is_cached(prefix)]
        for prefix in hits:
            self._hold(prefix)
        for _ in range(-(-len(tokens) // size) - len(hits)):
            self._take()
        for prefix in full[len(hits) :]:
            self.num_free += self.is_cached(prefix)  # it moves to the twin
            self._hold(prefix)
            self.ever.add(prefix)

    def num_needed(self, root: bytes, tokens: Tokens) -> int:
        """Free or evictable blocks that `compute` would take or revive."""
        usable = self.full_blocks(root, tokens)[: (len(tokens) - 1) // self._block_size]
        held = sum(self.holders[prefix] > 0 for prefix in usable)
        return -(-len(tokens) // self._block_size) - held

    def release(self, root: bytes, tokens: Tokens, *, has_failed: bool = False) -> None:
        """Child first. What a failed request alone vouches for was never there."""
        full = self.full_blocks(root, tokens)
        self.num_free += len(tokens) % self._block_size > 0
        for prefix in reversed(full):
            self.holders[prefix] -= 1
            if self.holders[prefix] > 0:
                continue
            if has_failed and not self._is_continued(prefix):
                self.num_free += 1
                self._forget_ever(prefix)
            else:
                self.evictable.append(prefix)

    def clear(self) -> None:
        self.num_free += len(self.evictable)
        self.evictable.clear()
        self.ever.clear()

    def _forget_ever(self, prefix: Prefix) -> None:
        root, tokens = prefix
        self.ever = {(r, t) for r, t in self.ever if r != root or t[: len(tokens)] != tokens}

    def _is_continued(self, prefix: Prefix) -> bool:
        root, tokens = prefix
        children = ((r, t) for r, t in self.ever if r == root and t[: -self._block_size] == tokens)
        return any(self.is_cached(child) for child in children)

    def _hold(self, prefix: Prefix) -> None:
        if prefix in self.evictable:
            self.evictable.remove(prefix)
        self.holders[prefix] += 1

    def _take(self) -> None:
        if self.num_free:
            self.num_free -= 1
        else:
            self.evictable.pop(0)


def shared(a: Tokens, b: Tokens) -> int:
    """Leading tokens that both have."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length
