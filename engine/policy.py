"""Who goes next and who makes room: the order of waiting requests and the victim of preemption.

First come, first served within a class; lower `priority` values are served first, and preempted
requests come back before those that never ran. Failure mode: one client's flood delays everyone of
its class behind it, and a busy class starves the lower ones. Fairness needs another policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from engine.request import Flow


class Candidate(Protocol):
    """What a policy may know of a request. Hashed and compared by identity."""

    @property
    def request_id(self) -> str: ...
    @property
    def flow(self) -> Flow: ...
    @property
    def priority(self) -> int:
        """Its class: lower is higher."""

    @property
    def arrival_order(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_uncomputed_tokens(self) -> int:
        """To the end of what is known; before admission, as if nothing were cached."""


C = TypeVar("C", bound=Candidate)


class Service(NamedTuple):
    """What a request was given. No token counts twice: not one that is computed again after a preemption
    or a failed step, nor one that was counted at another replica before."""

    num_uncached_tokens: int = 0
    """Prompt tokens put into a step."""
    num_cached_tokens: int = 0
    """Prompt tokens that its first look-up found, as its output tells."""
    num_output_tokens: int = 0


class SchedulingPolicy(Protocol):
    """Preferences only: that budgets hold and that everything ends is the scheduler's own duty.

    It is told who waits and what was served; one that keeps no books inherits how that is taken in.
    """

    def arrived(self, candidate: Candidate) -> None:
        """It waits from now on: it is new, or its blocks were needed or lost."""
        return

    def left(self, candidate: Candidate) -> None:
        """It waits no longer: it runs, or ended without. Once for each arrival."""
        return

    def served(self, candidate: Candidate, service: Service) -> None:
        """Input as its step is launched, output as it comes."""
        return

    def order(self, candidates: Iterable[C]) -> Iterator[C]:
        """All candidates, the most entitled first. A step takes no more of them than it has room for."""

    def victim(self, candidates: Sequence[C]) -> C:
        """The one to preempt, of at least one."""

    def is_background(self, candidate: Candidate) -> bool:
        """Whether nobody waits for it: all that is so gets a small part of what others leave of each step."""
        return False


class FirstComeFirstServed(SchedulingPolicy):
    def order(self, candidates: Iterable[C]) -> Iterator[C]:
        return iter(sorted(candidates, key=place_in_line))

    def victim(self, candidates: Sequence[C]) -> C:
        """Of the lowest class, the one with the fewest tokens to recompute; of equals, the youngest."""
        return min(candidates, key=lambda c: (-c.priority, c.num_computed_tokens, -c.arrival_order))


def place_in_line(candidate: Candidate) -> tuple[int, bool, int]:
    """Sorts by class; in it the preempted first, then by arrival."""
    return candidate.priority, candidate.num_preemptions == 0, candidate.arrival_order
