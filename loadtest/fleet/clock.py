"""Time that passes from event to event."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Event = Callable[[], None]


class VirtualClock:
    """Owns the time, in seconds, and what is still to happen. Events of one moment happen in the order in
    which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._order = count()

    def at(self, time: float, event: Event) -> None:
        """A time that is over is now."""
        heappush(self._events, (max(time, self.now), next(self._order), event))

    def after(self, seconds: float, event: Event) -> None:
        self.at(self.now + seconds, event)

    def every(self, seconds: float, event: Event, until: Callable[[], bool] = lambda: False) -> None:
        """For the first time in so many seconds."""

        def again() -> None:
            if not until():
                event()
                self.after(seconds, again)

        self.after(seconds, again)

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """All events up to `until`, or until it is over."""
        while self._events and self._events[0][0] <= until and not is_over():
            self.now, _, event = heappop(self._events)
            event()
