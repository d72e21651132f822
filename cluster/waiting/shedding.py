"""Who may come in, who is turned away, and when to come back.

Algorithm. The line is *over* for an arrival if its turn would not come in time, or a cap is reached. Then who
stands lower is shed in its place, the newest first, and yields at the door for a while. If nobody does, or it
would be late all the same, it is turned away itself; nobody is shed for who does not come in.

Who is turned away is told when to come back, and stands in a line outside until then (`promises.py`): the
next one is told a later time. So a client that comes when it was told finds the line a third full, and gets
in. Who comes unannounced stands behind its tenant's own outside: it gets in if the line would not be over
with as many of them in it as come of late, or is so short that replicas might run out of work if they do not.

Failure mode: above `MAX_RETRY_AFTER_S` the line outside is longer than anybody may be told; the last of them
come too early, and are turned away again. And what a tenant gets may shrink after it was reckoned with
(another returns, a replica dies, those above need all): then the times that were told are too early.
"""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

from cluster.waiting.wait_estimate import Wait

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 120.0
TARGET = 1 / 3
"""How full the line is to be when those come back who were turned away; 1 is the most."""
LOW = 0.25
"""A line that is no fuller takes in whoever comes."""
HALF = 0.5
"""And one that is no fuller whoever says that another gateway told it to come; a fuller one is for those
whose time is known here."""
YIELD_S = 1.0
"""For so long nobody comes in who stands lower than one that they kept out."""
JITTER = 0.1
"""Up to so much of the time is added to it: who was turned away together is not to come back together."""


class Rejection(NamedTuple):
    """What the client is told."""

    status: int
    code: str
    retry_after_s: int | None
    """None: coming back does not help."""


class Shed(NamedTuple):
    """One that waited, and has to go."""

    entry_id: str
    told: Rejection


class Fullness(NamedTuple):
    """How full a line is with one more in it: 1 is the most."""

    of_time: float
    """The time until its turn ÷ the time until it must have come."""
    of_tenant: float
    """Of its `max_queue_len`."""
    of_all: float
    """Of what may wait at the gateway."""

    @property
    def is_over(self) -> bool:
        return self.most > 1

    @property
    def most(self) -> float:
        return max(self)

    @property
    def code(self) -> tuple[int, str]:
        """Status and code of a refusal. Only a tenant's own cap is the tenant's own matter."""
        return (429, "queue_full") if self.of_tenant > 1 else (503, "overloaded")


def until_shorter_s(wait: Wait, time_left_s: float) -> float:
    """Seconds until the line is `TARGET` full for who is turned away now.

    `wait`: behind all in line and outside; `time_left_s`: what the request had for waiting. While a replica
    is on its way, `wait` reckons with it. Nobody is told its bare arrival: all would come at once.
    """
    return wait.from_now_s - TARGET * min(wait.drain_s, time_left_s)


def retry_after_s(until_s: float, rng: Random) -> int:
    """Whole seconds to tell for a place that is free in `until_s`."""
    jittered_s = max(until_s, MIN_RETRY_AFTER_S) * rng.uniform(1, 1 + JITTER)
    return math.ceil(min(jittered_s, MAX_RETRY_AFTER_S))
