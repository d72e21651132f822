"""What prefix lookups found, in prompt tokens: hits, and of every miss the reason."""

from __future__ import annotations

import msgspec

MISS_REASONS = ("cold", "evicted", "diverged", "below_block")
"""Each has a field of `PrefixStats`: `<reason>_tokens`."""


class PrefixStats(msgspec.Struct, frozen=True, gc=False, array_like=True):
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
    """Position in the prompt of the first other token. A sum has none."""

    @property
    def queries_tokens(self) -> int:
        """All tokens that were looked up."""
        return self.attainable_tokens + self.diverged_tokens + self.cold_tokens + self.below_block_tokens

    @property
    def attainable_tokens(self) -> int:
        """What a cache that never evicts would have hit."""
        return self.hit_tokens + self.evicted_tokens

    def __add__(self, other: PrefixStats) -> PrefixStats:
        return PrefixStats(
            hit_tokens=self.hit_tokens + other.hit_tokens,
            evicted_tokens=self.evicted_tokens + other.evicted_tokens,
            diverged_tokens=self.diverged_tokens + other.diverged_tokens,
            cold_tokens=self.cold_tokens + other.cold_tokens,
            below_block_tokens=self.below_block_tokens + other.below_block_tokens,
        )
