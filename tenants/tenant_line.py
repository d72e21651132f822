"""One tenant's waiting requests of one class, first come, first served, and what the tenant has had."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tenants.queued import Queued, Work


class _Place(NamedTuple):
    arrival: int
    entry: Queued


class TenantLine:
    """Owns the tenant's *virtual counter*: tokens of service by weight since it was first known."""

    __slots__ = ("_places", "counter", "seats", "tokens", "uncached_tokens", "weight")

    def __init__(self, counter: float) -> None:
        self.counter = counter
        self.weight = 1
        """As its last entry said."""
        self.tokens = 0.0
        """Of service, of all input that waits."""
        self.uncached_tokens = 0
        self.seats = 0
        """One for each sibling that is asked for."""
        # Not a dict: taking its first again and again scans all that was deleted before.
        self._places: OrderedDict[str, _Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def work(self) -> Work:
        """All that waits."""
        return Work(self.tokens, self.seats)

    @property
    def head(self) -> Queued:
        """Raises StopIteration if nothing waits."""
        return next(iter(self._places.values())).entry

    @property
    def turn(self) -> tuple[float, float, int]:
        """Of those in credit the least goes first: longest prefix, most credit by weight, arrival."""
        arrival, head = next(iter(self._places.values()))
        return (-head.cached_tokens, self.counter, arrival)

    def append(self, entry: Queued, arrival: int) -> None:
        self._places[entry.entry_id] = _Place(arrival, entry)
        self.weight = entry.share.weight
        self.tokens += entry.input_service
        self.uncached_tokens += entry.uncached_tokens
        self.seats += entry.num_siblings

    def remove(self, entry_id: str) -> None:
        """Raises KeyError if it does not wait here."""
        entry = self._places.pop(entry_id).entry
        self.uncached_tokens -= entry.uncached_tokens
        self.seats -= entry.num_siblings
        self.tokens = self.tokens - entry.input_service if self._places else 0.0

    def charge(self, tokens: float, weight: int) -> None:
        self.counter += tokens / weight

    def work_until(self, counter: float) -> Work:
        """What leaves until the virtual counter has passed `counter`, if all that waits is alike.

        `counter` is not below the virtual counter.
        """
        num, lag = len(self._places), (counter - self.counter) * self.weight
        if lag >= self.tokens:
            return self.work
        num_gone = lag // (self.tokens / num) + 1
        return Work(num_gone * self.tokens / num, num_gone * self.seats / num)
