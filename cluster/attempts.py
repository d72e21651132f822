"""How one request fares with replicas: where it was tried, and whether it is what kills them."""

from __future__ import annotations

MAX_SUBMITS = 3
"""One submit and two retries, until a replica accepts."""
MAX_STRIKES = 2
"""Replicas that a request may lose in a row without a single new token in between."""
MAX_DEATHS = 3
"""Replicas that a request may lose in all."""


class Attempts:
    """Owns what is remembered of one request's tries.

    A replica that dies takes all of its requests with it, and one of them may be the reason. A new
    token elsewhere clears a request; one that loses its replica again before that is *poisonous*, and
    so is one that lost `MAX_DEATHS`: it is tried no more, so that it cannot take the fleet down one by one.
    """

    def __init__(self) -> None:
        self.num_begun = 0
        self.tried: set[str] = set()
        """Replicas that failed it since its last token: others go first."""
        self._num_submits = 0
        self._num_strikes = 0
        self._num_deaths = 0

    def begin(self, replica_id: str) -> int:
        """The number of the attempt, from 0."""
        self.tried.add(replica_id)
        self._num_submits += 1
        self.num_begun += 1
        return self.num_begun - 1

    @property
    def is_suspect(self) -> bool:
        """It lost a replica, and no token has come since."""
        return self._num_strikes > 0

    @property
    def may_submit(self) -> bool:
        return self._num_submits < MAX_SUBMITS

    def answered(self) -> None:
        """The replica is there, and has taken it or has a good reason not to."""
        self._num_submits = 0

    def progressed(self) -> None:
        """A new token came."""
        self.tried.clear()
        self._num_strikes = 0

    def lost(self, replica_id: str) -> None:
        """The replica that ran it died, or failed in a step of it."""
        self.tried.add(replica_id)
        self._num_strikes += 1
        self._num_deaths += 1

    @property
    def is_poisonous(self) -> bool:
        return self._num_strikes >= MAX_STRIKES or self._num_deaths >= MAX_DEATHS
