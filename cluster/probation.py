"""Requests that lost their replica, and may be why it died: at most one at a time on each other replica.

A replica takes all that runs there with it, so most suspects are innocent, and the first new token clears
them. Were they all sent to one replica at once, a second death would look like the work of each of them.
"""

from __future__ import annotations

from collections.abc import Hashable


class Probation:
    """Owns which suspect is on which replica. A suspect holds one replica, until it is cleared or ends."""

    def __init__(self) -> None:
        self._held: dict[str, Hashable] = {}

    def place_of(self, suspect: Hashable) -> str | None:
        return next((place for place, holder in self._held.items() if holder is suspect), None)

    def is_open(self, replica_id: str, suspect: Hashable) -> bool:
        """Whether `suspect` may go there."""
        return self._held.get(replica_id, suspect) is suspect

    def hold(self, replica_id: str, suspect: Hashable) -> None:
        self.release(suspect)
        self._held[replica_id] = suspect

    def release(self, suspect: Hashable) -> bool:
        """Whether a replica is open that was held. Safe to repeat, and for one that holds nothing."""
        place = self.place_of(suspect)
        if place is not None:
            del self._held[place]
        return place is not None
