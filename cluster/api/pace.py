"""When a stream must do something though no token came: commit, give a sign of life, or give up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Timings:
    """Every duration of the HTTP layer, in seconds, and what may wait for a client, in bytes."""

    commit_after_s: float = 12.0
    """Status and headers go out with the first text, or this long after the request came."""
    keep_alive_s: float = 10.0
    unread_s: float = 30.0
    """A client that takes nothing for this long is given up."""
    max_unsent_bytes: int = 256 * 1024
    overfull_s: float = 1.0
    """Time to fall below `max_unsent_bytes` again: a burst is no reason to give up."""
    body_s: float = 30.0
    """Time to send the request's body."""
    max_body_bytes: int = 4 * 1024 * 1024


class Due(Enum):
    COMMIT = "commit"
    """Nothing was sent yet and the client has waited long: send status, headers, a comment."""
    KEEP_ALIVE = "keep-alive"
    EXPIRE = "expire"
    """The deadline of the answer has passed."""
    GIVE_UP = "give up"
    """The client does not read."""


class StreamPace:
    """Owns one stream's times. It is told `now`, on the clock that `arrived` and `deadline` are on."""

    def __init__(self, timings: Timings, *, arrived: float, deadline: float) -> None:
        self._timings = timings
        self._deadline: float | None = deadline
        self._commit_at: float | None = arrived + timings.commit_after_s
        self._last_sent = arrived
        self._sending_since: float | None = None

    def begin_send(self, now: float) -> None:
        self._commit_at = None
        self._sending_since = now

    def end_send(self, now: float) -> None:
        self._sending_since = None
        self._last_sent = now

    def due(self, now: float) -> Due | None:
        """What is due, the most final first. Each is told once; a sign of life counts as sent."""
        if self._sending_since is not None and now >= self._sending_since + self._timings.unread_s:
            return Due.GIVE_UP
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            return Due.EXPIRE
        if self._sending_since is not None or now < self._quiet_until():
            return None
        due = Due.KEEP_ALIVE if self._commit_at is None else Due.COMMIT
        self._commit_at = None
        self._last_sent = now
        return due

    def next_look(self, now: float) -> float:
        """Seconds until `due` is to be asked again: nothing is due earlier, whatever is sent meanwhile."""
        times = [now + self._timings.keep_alive_s]
        if self._deadline is not None:
            times.append(self._deadline)
        if self._sending_since is None:
            times.append(self._quiet_until())
        else:
            times.append(self._sending_since + self._timings.unread_s)
        return max(0.0, min(times) - now)

    def _quiet_until(self) -> float:
        if self._commit_at is not None:
            return self._commit_at
        return self._last_sent + self._timings.keep_alive_s
