"""When batch goes before interactive: often enough for 5 % of the tokens served while both wait, no oftener.

A running share, not a coin: batch is owed a token for each 19 of interactive, and its turn comes as soon as
it is owed anything. So it is above its share by at most one request and what its running ones still make, and
below it by no more than its part of what was served since somebody last left the queue.
"""

from __future__ import annotations

INTERACTIVE_PER_BATCH = 19
"""Tokens of service; 1 of 20 is 5 %."""


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
        """What batch gets while nothing interactive waits is at nobody's expense."""
        if is_contended:
            self._unmatched -= INTERACTIVE_PER_BATCH * tokens

    def batch_beside(self, interactive_tokens: float) -> float:
        """Batch tokens that go before the last of so many interactive ones."""
        return max(0.0, (self._unmatched + interactive_tokens) / INTERACTIVE_PER_BATCH)

    def interactive_before(self, batch_tokens: float) -> float:
        """Interactive tokens that go before the next batch request, once batch has had so many."""
        return max(0.0, INTERACTIVE_PER_BATCH * batch_tokens - self._unmatched)
