"""When batch goes before interactive: often enough for 5 % of the tokens served while both wait, no oftener.

A running share, not a coin: batch is owed a token for each 19 of interactive, and its turn comes as soon as
it is owed anything. So it is above its share by at most one request and what its running ones still make, and
below it by no more than its part of what was served since somebody last left the queue.

Failure mode: what batch makes above `MAX_OUTPUT_DEBT` is never paid for; it keeps that above its share.
"""

from __future__ import annotations

INTERACTIVE_PER_BATCH = 19
"""Tokens of service; 1 of 20 is 5 %."""
MAX_OUTPUT_DEBT = 20_000
"""Interactive tokens that may go before the next batch request for the sake of output that batch has made.
Who was let in while nobody else was there may hold all seats, and is not to keep the rest of its class
waiting for long after."""


class BatchFloor:
    """Owns how many interactive tokens batch has not had its part of; below 0: the part was had before."""

    def __init__(self) -> None:
        self._unmatched = 0.0

    @property
    def is_due(self) -> bool:
        return self._unmatched > 0

    def interactive_served(self, tokens: float, is_contended: bool) -> None:
        """Who does not wait earns nothing, but a debt is paid off all the time."""
        self._unmatched += tokens
        if not is_contended:
            self._unmatched = min(self._unmatched, 0.0)

    def batch_served(self, tokens: float, is_contended: bool) -> None:
        """Its input. What batch gets while nothing interactive waits is at nobody's expense."""
        if is_contended:
            self._unmatched -= INTERACTIVE_PER_BATCH * tokens

    def batch_made(self, tokens: float, is_contended: bool) -> None:
        """Its output, and whatever else it gets with no turn of its own: no debt above `MAX_OUTPUT_DEBT`."""
        least = min(self._unmatched, -MAX_OUTPUT_DEBT)
        self.batch_served(tokens, is_contended)
        self._unmatched = max(self._unmatched, least)

    def batch_beside(self, interactive_tokens: float) -> float:
        """Batch tokens that go before the last of so many interactive ones."""
        return max(0.0, (self._unmatched + interactive_tokens) / INTERACTIVE_PER_BATCH)

    def interactive_before(self, batch_tokens: float) -> float:
        """Interactive tokens that go before the next batch request, once batch has had so many."""
        return max(0.0, INTERACTIVE_PER_BATCH * batch_tokens - self._unmatched)
