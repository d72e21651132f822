"""Who goes next and who makes room: the order of waiting requests and the victim of preemption.

First come, first served within a class; lower `priority` values are served first, and preempted
requests come back before those that never ran. Failure mode: one client's flood delays everyone of
its class behind it, and a busy class starves the lower ones. Fairness needs another policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What a policy may know of a request."""

    @property
    def request_id(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrival_order(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...


C = TypeVar("C", bound=Candidate)


class SchedulingPolicy(Protocol):
    """Preferences only: that budgets hold and that everything ends is the scheduler's own duty."""

    def order(self, candidates: Iterable[C]) -> list[C]:
        """All candidates, the most entitled first."""

    def victim(self, candidates: Sequence[C]) -> C:
        """The one to preempt, of at least one."""


class FirstComeFirstServed:
    def order(self, candidates: Iterable[C]) -> list[C]:
        return sorted(candidates, key=lambda c: (c.priority, c.num_preemptions == 0, c.arrival_order))

    def victim(self, candidates: Sequence[C]) -> C:
        """Of the lowest class, the one with the fewest tokens to recompute; of equals, the youngest."""
        return min(candidates, key=lambda c: (-c.priority, c.num_computed_tokens, -c.arrival_order))
