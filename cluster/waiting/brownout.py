"""Shorter answers before anybody is turned away.

Algorithm: while interactive requests wait long, requests of batch, and those of tenants that weigh less than
the heaviest interactive one in line, get at most `brownout_max_tokens` of output. It begins when the wait of
all that is interactive reaches one part of the class's deadline, and ends below another, smaller one: between
the two it stays as it is, for what it saves would end it at once. Who weighs as much as anybody is never
lowered.
Failure mode: answers that would have been shorter anyway give nothing, and then only shedding helps.
"""

from __future__ import annotations

from cluster.waiting.config import WaitingConfig
from tenants.fair_queue import Share


class Brownout:
    """Owns whether it is on."""

    def __init__(self, config: WaitingConfig) -> None:
        self._config = config
        self._is_on = False

    @property
    def is_on(self) -> bool:
        return self._is_on

    def see(self, part_of_deadline: float) -> None:
        """The wait of all that is interactive ÷ the class's deadline, as it is now."""
        config = self._config
        limit = config.brownout_ends_at if self._is_on else config.brownout_begins_at
        self._is_on = part_of_deadline >= limit

    def max_tokens(self, share: Share, heaviest: int, asked: int) -> int:
        """Of the output; `heaviest`: the most weight of an interactive tenant in line, 0 if there is none."""
        is_lower = share.service_class == "batch" or share.weight < heaviest
        return min(asked, self._config.brownout_max_tokens) if self._is_on and is_lower else asked
