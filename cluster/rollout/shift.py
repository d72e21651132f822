"""One direction of a rolling update: service moves from one pool of replicas to another, one at a time.

Pure: told what is seen.

While there is room for one replica more, the growing pool gets it before the other one gives any up:
never fewer than `size` replicas serve. Without room the other pool gives one up first: never fewer than
`size` − 1, and a single replica is not given up at all.
Failure mode: a replica is held to serve `SETTLE_S` after it is seen to run, when gateways have found it;
one that takes longer to be found costs its share of the service for the time between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SETTLE_S = 2.0
"""Gateways look for new pools once a second."""
START_LIMIT_S = 600.0
"""For one replica to load and pass its golden prompts."""
ROOM_SLACK_S = 10.0
"""What a replica's process takes to end once its last answer has, at most."""


class Scale(NamedTuple):
    """Sets a pool's size; a pool that is not there yet is started with it."""

    pool_id: str
    num_replicas: int


class Delete(NamedTuple):
    pool_id: str


Move = Scale | Delete


class ShiftFailed(Exception):
    """The growing pool cannot take over: why, in one line, and what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class Seen(NamedTuple):
    """What the cluster looks like now."""

    num_running: Mapping[str, int]
    """Replicas that serve, by pool; a pool that is not there is not in it."""
    has_room: bool
    """Whether one more replica of the growing pool could start beside all that run."""
    failure: tuple[str, str] | None = None
    """What a replica of the growing pool failed of, and the remedy."""


class Shift:
    """Owns how many replicas each of the two pools is to have, and when that last changed.

    It is given how many they have. `drain_limit_s`: how long a replica that leaves may go on answering.
    """

    def __init__(
        self, grow: str, shrink: str, *, size: int, num_grow: int, num_shrink: int, drain_limit_s: float
    ) -> None:
        self.grow = grow
        self.shrink = shrink
        self.num_grow = num_grow
        self.num_shrink = num_shrink
        self._size = size
        self._room_limit_s = drain_limit_s + ROOM_SLACK_S
        self._starting_since: float | None = None
        self._whole_since: float | None = None
        self._shrunk_at: float | None = None
        self._deleted_at: float | None = None

    @property
    def is_deleting(self) -> bool:
        """Whether the growing pool has taken over, and what is left is to see the other one gone."""
        return self._deleted_at is not None

    def next(self, seen: Seen, now: float) -> Move | None:
        """What to do now, which the caller does; None: wait and look again. `now` in seconds, monotonic.

        Raises `ShiftFailed`.
        """
        if self.is_deleting:
            return None
        if seen.failure is not None:
            raise ShiftFailed(*seen.failure)
        if not self._is_settled(seen, now):
            return None
        if self.num_grow >= self._size:
            self._deleted_at, self.num_shrink = now, 0
            return Delete(self.shrink)
        if self.num_grow + self.num_shrink > self._size:
            return self._shrink_to(self._size - self.num_grow, now)
        return self._make_progress(seen.has_room, now)

    def is_over(self, seen: Seen, now: float) -> bool:
        """Whether the other pool is gone, or was given all the time that it may take."""
        if self._deleted_at is None:
            return False
        return self.shrink not in seen.num_running or now - self._deleted_at > self._room_limit_s

    def _is_settled(self, seen: Seen, now: float) -> bool:
        """Whether all replicas that were started serve. Raises `ShiftFailed` if that takes too long."""
        if seen.num_running.get(self.grow, 0) >= self.num_grow:
            self._starting_since = None
            self._whole_since = now if self._whole_since is None else self._whole_since
            return self.num_grow == 0 or now - self._whole_since >= SETTLE_S
        self._whole_since = None
        self._starting_since = now if self._starting_since is None else self._starting_since
        if now - self._starting_since > START_LIMIT_S:
            raise ShiftFailed(
                f"a replica was not there after {START_LIMIT_S:.0f} s", "see <state-dir>/run/ray"
            )
        return False

    def _make_progress(self, has_room: bool, now: float) -> Move | None:
        if has_room:
            self._whole_since = self._shrunk_at = None
            self.num_grow += 1
            return Scale(self.grow, self.num_grow)
        if self._shrunk_at is not None and now - self._shrunk_at <= self._room_limit_s:
            return None  # a replica is leaving; its place becomes free
        if self.num_grow + self.num_shrink < self._size or self._size == 1:
            raise ShiftFailed(
                "there is no room for one more replica",
                "free the memory or the GPU that one replica more takes, or lower --kv-memory",
            )
        return self._shrink_to(self.num_shrink - 1, now)

    def _shrink_to(self, count: int, now: float) -> Move:
        self._shrunk_at, self.num_shrink = now, count
        return Scale(self.shrink, count)
