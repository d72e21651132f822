"""Which of the waiting have run out of time."""

from __future__ import annotations

import math

from cluster.waiting.expiry_heap import ExpiryHeap


class DeadlineWatch:
    """Owns the deadlines of what waits at a gateway, and for how long it has had no replica at all.

    While there is none, requests are held: that time does not count against the deadline of a turn, which
    says how long a queue may get, not how long a start takes. It counts against the answer's.
    """

    def __init__(self) -> None:
        self._turn = ExpiryHeap()
        """As if no request had ever been held: deadlines less what was held before they came."""
        self._answer = ExpiryHeap()
        self._held_s = 0.0
        self._held_since = math.inf
        """Infinity: nothing is held."""

    def see(self, now: float, *, is_served: bool) -> None:
        """`is_served`: some replica takes work."""
        self._held_s = self.held_s(now)
        self._held_since = math.inf if is_served else now

    def held_s(self, now: float) -> float:
        """Seconds without a replica, up to now."""
        return self._held_s + max(0.0, now - self._held_since)

    def add(self, entry_id: str, turn_by_s: float, answer_by_s: float, now: float) -> None:
        self._turn.add(entry_id, turn_by_s - self.held_s(now))
        self._answer.add(entry_id, answer_by_s)

    def discard(self, entry_id: str) -> None:
        self._turn.discard(entry_id)
        self._answer.discard(entry_id)

    def take_due(self, now: float) -> list[str]:
        """Those whose time is over; they are no longer watched."""
        due = self._answer.take_due(now) + self._turn.take_due(now - self.held_s(now))
        for entry_id in due:
            self.discard(entry_id)
        return list(dict.fromkeys(due))

    def next_s(self) -> float | None:
        """When the next one will be due; None: none, as things are."""
        answer_s, turn_s = self._answer.next_s(), self._turn.next_s()
        if turn_s is None or self._held_since < math.inf:
            return answer_s
        return min(turn_s + self._held_s, math.inf if answer_s is None else answer_s)
