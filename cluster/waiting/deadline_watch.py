"""Which of the waiting have run out of time."""

from __future__ import annotations

import math

from tenants.ranking import Ranking


class DeadlineWatch:
    """Owns the deadlines of what waits at a gateway, and for how long it has had no replica at all.

    While there is none, requests are held: that time does not count against the deadline of a turn, which
    says how long a queue may get, not how long a start takes. It counts against the answer's.
    """

    def __init__(self) -> None:
        self._turn = Ranking()
        """In seconds, as if no request had ever been held: deadlines less what was held before they came."""
        self._answer = Ranking()
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
        self._turn.put(entry_id, (turn_by_s - self.held_s(now),))
        self._answer.put(entry_id, (answer_by_s,))

    def discard(self, entry_id: str) -> None:
        self._turn.discard(entry_id)
        self._answer.discard(entry_id)

    def take_due(self, now: float) -> list[str]:
        """Those whose time is over; they are no longer watched."""
        due = self._answer.take_to(now) + self._turn.take_to(now - self.held_s(now))
        for entry_id in due:
            self.discard(entry_id)
        return list(dict.fromkeys(due))

    def next_s(self) -> float | None:
        """When the next one will be due; None: none, as things are."""
        first_s = _first_s(self._answer)
        if self._held_since == math.inf:
            first_s = min(first_s, _first_s(self._turn) + self._held_s)
        return None if first_s == math.inf else first_s


def _first_s(deadlines: Ranking) -> float:
    """Infinity: there is none."""
    return deadlines.least()[0][0] if deadlines else math.inf
