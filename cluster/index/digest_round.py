"""One round of the digest: everything told again, slice by slice, to find what was lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

MAX_BATCH = 500
"""Claims told in one call: Redis serves nobody else meanwhile. So at most 5,000 a second, many times what
an engine makes."""
ROUND_S = 30.0
SLICES = 30
"""Of a round, unless it has so many blocks that they would be larger than a batch."""


class DigestRound:
    """Owns how far the round is. It begins at `now`, and is spread over `period_s` or, if 0, goes as fast
    as it is asked."""

    def __init__(self, block_hashes: Sequence[bytes], now: float, period_s: float) -> None:
        self.num_repaired = 0
        """Claims that turned out not to be in the index as told."""
        self._block_hashes = block_hashes
        self._begun = now
        self._period_s = period_s
        self._size = min(MAX_BATCH, ceil(len(block_hashes) / SLICES)) if period_s else MAX_BATCH
        self._position = 0

    def is_over(self, now: float) -> bool:
        return self._position >= len(self._block_hashes) and now >= self._begun + self._period_s

    def next_slice(self, now: float) -> Sequence[bytes]:
        """What is to be told now: empty between slices and at the end."""
        if now < self._begun + self._period_s * self._position / max(1, len(self._block_hashes)):
            return ()
        told = self._block_hashes[self._position : self._position + self._size]
        self._position += len(told)
        return told
