"""A rate with a burst, counted exactly: how much of it is taken, and how that drains.

This is the generic cell rate algorithm (GCRA) in the second of its two equal forms, ITU-T I.371 annex A:
the continuous-state leaky bucket. The first, virtual scheduling, keeps a theoretical arrival time instead;
level = (that time - now) × rate. A level stays true when the rate is changed, an arrival time does not.

A level is counted in units of token / (60 × 10^6), so that a rate of r tokens a minute drains exactly
r units a µs. Every level is an integer below 2^53: Redis' scripts, which know doubles only, count the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tenants.terms import Limits

UNIT = 60 * 10**6
"""One token."""
MAX_BURST = 10**8
_MAX_TOKENS = 15 * 10**7
MAX_LEVEL = _MAX_TOKENS * UNIT
"""A level ends here: a debt of more than 5 × 10^7 tokens above the largest burst is forgiven."""


class Meter(NamedTuple):
    """One rate. Levels are its caller's; times are in µs, tokens and units are whole."""

    per_min: int
    burst: int
    """Tokens that may be taken at once, and all that a level may hold after a take."""

    def level_after(self, level: int, elapsed_us: int) -> int:
        """What is left of `level`. A clock that was set back drains nothing and adds nothing."""
        return max(0, level - self.per_min * max(0, elapsed_us))

    def is_never(self, tokens: int) -> bool:
        """Whether not even an empty level would hold them."""
        return tokens > self.burst

    def has_room(self, level: int, tokens: int) -> bool:
        return level <= (self.burst - tokens) * UNIT

    def wait_us(self, level: int, tokens: int) -> int:
        """Until there is room, if nothing else is taken. `tokens` at most `burst`."""
        return -(-max(0, level - (self.burst - tokens) * UNIT) // self.per_min)

    def remaining(self, level: int) -> int:
        """Tokens that may be taken now."""
        return max(0, self.burst * UNIT - level) // UNIT

    def reset_us(self, level: int) -> int:
        """Until the level is empty, if nothing else is taken."""
        return -(-level // self.per_min)


def changed(level: int, tokens: int) -> int:
    """A take (`tokens` > 0), or what a settlement adds or gives back. Never below empty: what has drained
    is not given back."""
    return min(MAX_LEVEL, max(0, level + max(-_MAX_TOKENS, min(_MAX_TOKENS, tokens)) * UNIT))


@lru_cache(maxsize=4096)
def meters(limits: Limits) -> tuple[Meter | None, Meter | None, Meter | None]:
    """Of requests, input tokens and output tokens; None: no limit."""
    rates = (limits.requests_per_min, limits.input_tokens_per_min, limits.output_tokens_per_min)
    requests, inputs, outputs = (None if rate is None else _meter(rate, limits.burst_s) for rate in rates)
    return requests, inputs, outputs


def _meter(per_min: int, burst_s: int) -> Meter:
    return Meter(per_min, min(MAX_BURST, max(1, per_min * burst_s // 60)))
