"""Names by key, the least first: a heap in which a name's key may change."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

Key = tuple[float, ...]

_MIN_STALE = 16


class Ranking:
    """Owns the key of each name. A change is O(log n), amortised; of equal keys the lesser name comes first.

    A key that was replaced stays in the heap until it comes to the top, or until the stale ones are more than
    the live ones.
    """

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._heap: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, name: str, key: Key) -> None:
        """Gives the name this key, whether or not it had one."""
        self._keys[name] = key
        heappush(self._heap, (key, name))
        if len(self._heap) > 2 * len(self._keys) + _MIN_STALE:
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapify(self._heap)

    def discard(self, name: str) -> None:
        self._keys.pop(name, None)

    def least(self) -> tuple[Key, str]:
        """(key, name) of the first. Raises IndexError if there is none."""
        while True:
            key, name = self._heap[0]
            if self._keys.get(name) == key:
                return key, name
            heappop(self._heap)

    def names(self) -> list[str]:
        """All of them, in order. O(n log n)."""
        return sorted(self._keys, key=lambda name: (self._keys[name], name))

    def take_below(self, limit: float) -> list[str]:
        """Takes off the names whose keys begin with less than the limit, the least first."""
        return self._take_while(lambda first: first < limit)

    def take_to(self, limit: float) -> list[str]:
        """Takes off the names whose keys begin with no more than the limit, the least first."""
        return self._take_while(lambda first: first <= limit)

    def _take_while(self, is_taken: Callable[[float], bool]) -> list[str]:
        taken = []
        while self._keys and is_taken(self.least()[0][0]):
            taken.append(self.least()[1])
            self.discard(taken[-1])
        return taken
