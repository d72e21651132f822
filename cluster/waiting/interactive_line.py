"""The interactive requests in line, all tenants' together."""

from __future__ import annotations

from collections import Counter

from tenants.queued import Queued, Work


class InteractiveLine:
    """Owns how much waits of the class, and with which weights. Entries of batch are let pass uncounted."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seats = 0
        self._weights: Counter[int] = Counter()

    @property
    def work(self) -> Work:
        return Work(self._tokens, self._seats)

    @property
    def heaviest(self) -> int:
        """The most weight of a tenant in line; 0: nobody is."""
        return max(self._weights, default=0)

    def add(self, entry: Queued) -> None:
        if entry.share.service_class == "interactive":
            self._tokens += entry.input_service
            self._seats += entry.num_siblings
            self._weights[entry.share.weight] += 1

    def remove(self, entry: Queued) -> None:
        if entry.share.service_class == "interactive":
            self._tokens -= entry.input_service
            self._seats -= entry.num_siblings
            self._weights[entry.share.weight] -= 1
            if not self._weights[entry.share.weight]:
                del self._weights[entry.share.weight]
        if not self._weights:
            self._tokens = 0.0  # whatever rounding left
