"""Names that are due one after the other, and may be crossed out before."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class ExpiryHeap:
    """Owns when each name is due. A change is O(log names), amortised; at most twice the names are kept."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, name: str, due_s: float) -> None:
        self._due_s[name] = due_s
        heappush(self._heap, (due_s, name))
        if len(self._heap) > 2 * len(self._due_s) + 16:
            self._heap = [(at, name) for name, at in self._due_s.items()]
            heapify(self._heap)

    def discard(self, name: str) -> None:
        self._due_s.pop(name, None)

    def next_s(self) -> float | None:
        """When the first one is due; None: there is none."""
        while self._heap and self._due_s.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> list[str]:
        """The names that are due, the first one first; they are no longer kept."""
        due = []
        while (next_s := self.next_s()) is not None and next_s <= now:
            name = heappop(self._heap)[1]
            del self._due_s[name]
            due.append(name)
        return due
