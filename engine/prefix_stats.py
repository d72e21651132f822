"""What prefix lookups found, in prompt tokens: hits, and of every miss the reason."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_ROOTS = 64
"""Roots with figures of their own; the least recently looked up beyond it are one sum."""


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """One lookup, or the sum of many. Each token of a prompt is in exactly one field, in this order:

    1. *hit*: in the leading blocks that are cached;
    2. *evicted*: in the blocks behind them that were cached once; a larger cache would have had them;
    3. of the full blocks behind those, all *diverged* or all *cold*. Diverged: the prompt shares its
       first `diverged_at` tokens with one that is known, and there goes another way. Cold: what it
       shares, nothing known continues, or it shares not even its first token;
    4. *below_block*: in the tail that fills no block, and in the last block if the prompt ends with it,
       for one token is always computed.

    So a timestamp at the top of a system prompt shows as a whole prompt that diverged at a small token.
    """

    hit_tokens: int = 0
    evicted_tokens: int = 0
    diverged_tokens: int = 0
    cold_tokens: int = 0
    below_block_tokens: int = 0
    diverged_at: int | None = None
    """Position in the prompt of the first other token; in a sum the latest one."""

    @property
    def queries_tokens(self) -> int:
        """All tokens that were looked up."""
        return self.attainable_tokens + self.diverged_tokens + self.cold_tokens + self.below_block_tokens

    @property
    def attainable_tokens(self) -> int:
        """What a cache that never evicts would have hit."""
        return self.hit_tokens + self.evicted_tokens

    def __add__(self, later: PrefixStats) -> PrefixStats:
        return PrefixStats(
            hit_tokens=self.hit_tokens + later.hit_tokens,
            evicted_tokens=self.evicted_tokens + later.evicted_tokens,
            diverged_tokens=self.diverged_tokens + later.diverged_tokens,
            cold_tokens=self.cold_tokens + later.cold_tokens,
            below_block_tokens=self.below_block_tokens + later.below_block_tokens,
            diverged_at=self.diverged_at if later.diverged_at is None else later.diverged_at,
        )


class PrefixStatsByRoot:
    """Owns the sums since the start: of all lookups, and of each hash root, which is one tenant's."""

    def __init__(self, max_roots: int = MAX_ROOTS) -> None:
        self.total = PrefixStats()
        self.others = PrefixStats()
        """Of the roots that are not kept apart (any more)."""
        self._max_roots = max_roots
        self._by_root: OrderedDict[bytes, PrefixStats] = OrderedDict()  # the latest looked up is last

    @property
    def by_root(self) -> Mapping[bytes, PrefixStats]:
        """A live view, the least recently looked up first."""
        return MappingProxyType(self._by_root)

    def count(self, root: bytes, lookup: PrefixStats) -> None:
        self.total += lookup
        self._by_root[root] = self._by_root.pop(root, PrefixStats()) + lookup
        if len(self._by_root) > self._max_roots:
            _, oldest = self._by_root.popitem(last=False)
            self.others += oldest
