"""A rolling update from one pool of replicas to another, and back if the new version fails.

Pure: told the time and what is seen; each `next` says what to do. `cluster/rollout/shift.py` holds the pace.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from cluster.golden import GoldenPrompt
from cluster.rollout.shift import Delete, Move, Scale, Seen, Shift, ShiftFailed

RolloutState = Literal["pending", "checking", "running", "reverting", "done", "failed"]
ENDED: frozenset[RolloutState] = frozenset({"done", "failed"})
"""States that no rollout leaves."""


class RolloutStep(msgspec.Struct, frozen=True):
    """Something that was done or found; `at` is Unix time in seconds."""

    at: float
    text: str


class Rollout(msgspec.Struct, frozen=True):
    """A rollout as operators see it. Times are Unix seconds."""

    rollout_id: str
    created_at: float
    model: str | None = None
    """As asked; None: that which is served."""
    revision: str | None = None
    """As asked: how the new files' digest begins."""
    num_golden: int = 0
    """Golden prompts that were given; 0: those of the version that serves are asked."""
    state: RolloutState = "pending"
    num_replicas: int = 0
    """Of the cluster, when it began."""
    num_updated: int = 0
    """Replicas of the new version that serve."""
    steps: tuple[RolloutStep, ...] = ()
    error: str | None = None
    """Why it failed, in one line."""
    remedy: str | None = None
    ended_at: float | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def with_step(self, now: float, text: str) -> Rollout:
        return msgspec.structs.replace(self, steps=(*self.steps, RolloutStep(now, text)))


class Order(NamedTuple):
    """A rollout and what its new replicas must answer, which is shown to nobody."""

    rollout: Rollout
    golden: tuple[GoldenPrompt, ...] = ()


class RollingUpdate:
    """One pool takes the place of another of `size` replicas; if it fails, the other takes it back.

    Owns in which of the two directions it goes, and why it turned.
    """

    def __init__(self, old: str, new: str, *, size: int, drain_limit_s: float) -> None:
        self._old = old
        self._new = new
        self._size = size
        self._drain_limit_s = drain_limit_s
        self._shift = self._towards(new, old, num_grow=0, num_shrink=size)
        self.failure: ShiftFailed | None = None
        """Why the new pool did not stay."""
        self._is_stuck = False

    def _towards(self, grow: str, shrink: str, *, num_grow: int, num_shrink: int) -> Shift:
        return Shift(
            grow,
            shrink,
            size=self._size,
            num_grow=num_grow,
            num_shrink=num_shrink,
            drain_limit_s=self._drain_limit_s,
        )

    @property
    def growing(self) -> str:
        """The pool whose replicas are being started: whose failures count."""
        return self._shift.grow

    def next(self, seen: Seen, now: float) -> Move | None:
        """What to do now, which the caller does; None: wait and look again, or see `outcome`."""
        if self._is_stuck:
            return None
        try:
            return self._shift.next(seen, now)
        except ShiftFailed as failure:
            self.roll_back(failure)
            return None

    def roll_back(self, failure: ShiftFailed) -> None:
        """The new pool goes. Where there is no way back either, all stays as it is."""
        if self.failure is not None or self._shift.is_deleting:
            self._is_stuck = True
            self.failure = _stuck(self.failure, failure)
            return
        forward, self.failure = self._shift, failure
        self._shift = self._towards(
            self._old, self._new, num_grow=forward.num_shrink, num_shrink=forward.num_grow
        )

    def outcome(self, seen: Seen, now: float) -> RolloutState | None:
        """How it ended, or None while it goes on."""
        if self._is_stuck:
            return "failed"
        if not self._shift.is_over(seen, now):
            return None
        return "done" if self.failure is None else "failed"

    def describe(self, move: Move) -> str:
        """The move, in words."""
        version = "new" if move.pool_id == self._new else "old"
        if isinstance(move, Delete):
            return f"the {version} version leaves: its last answers end"
        started = move.pool_id == self._shift.grow
        return f"{version} version: {'starting' if started else 'keeping'} {replicas(move)}"


def _stuck(first: ShiftFailed | None, then: ShiftFailed) -> ShiftFailed:
    if first is None:
        message = f"the new version serves, but the old one could not be taken down: {then.message}"
    else:
        message = f"{first.message}; and the old version could not be restored: {then.message}"
    return ShiftFailed(message, then.remedy)


def replicas(move: Scale) -> str:
    return f"{move.num_replicas} replica" + ("" if move.num_replicas == 1 else "s")
