"""How long first tokens take to come, once their requests have had their turn."""

from __future__ import annotations

from collections import deque

COLD_S = 0.0
"""Nothing is known to be late, until some were."""
NUM_SEEN = 64
NUM_LATER = 6
"""Of the last `NUM_SEEN` so many took longer than what is reckoned with."""


class FirstTokens:
    """Owns how long the last ones took beyond the prefill of their own prompts: on the way to a replica and
    back, and there behind others that had their turn before.

    No mean: half of all would be late by it. Failure mode: as many first tokens have to come as are
    remembered before a change is fully known.
    """

    def __init__(self) -> None:
        self._seen = deque([COLD_S] * NUM_SEEN, maxlen=NUM_SEEN)
        self.most_s = COLD_S
        """Nearly all took no longer."""

    def came(self, seconds: float) -> None:
        self._seen.append(max(0.0, seconds))
        self.most_s = sorted(self._seen)[-1 - NUM_LATER]
