"""What a gateway knows of all its replicas together."""

from __future__ import annotations

from typing import NamedTuple


class Fleet(NamedTuple):
    """Of the replicas that take work from this gateway now."""

    num_replicas: int
    num_seats: int
    """Requests that they can run at once, together."""
    free_seats: int
    next_replica_s: float | None = None
    """When the next one will take work, on the clock that `now` is of; None: nobody knows of one."""
    part: float = 1.0
    """Of what they can do, what this gateway may have; the rest is other gateways'."""

    def until_next_s(self, now: float) -> float | None:
        return None if self.next_replica_s is None else max(0.0, self.next_replica_s - now)


NOBODY = Fleet(num_replicas=0, num_seats=0, free_seats=0)
