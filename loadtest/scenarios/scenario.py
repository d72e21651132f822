"""What a scenario is: a load on a fleet in virtual time, bounds on its figures, something to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from loadtest.fleet.curve import Curve

OnTime = Callable[[float], None]
"""Hears now and then how far a run is, in seconds of its own time."""


class Bound(NamedTuple):
    """On one of the figures."""

    figure: str
    sense: Literal["≤", "≥"]
    limit: float

    def is_kept_by(self, figures: Mapping[str, Any]) -> bool:
        """A figure that could not be taken keeps nothing."""
        value = figures[self.figure]
        if value is None:
            return False
        return bool(value <= self.limit if self.sense == "≤" else value >= self.limit)

    def __str__(self) -> str:
        return f"{self.figure} {self.sense} {self.limit:g}"


@dataclass(frozen=True)
class ScenarioResult:
    """Of one run, or of two that are compared."""

    figures: Mapping[str, Any]
    rejected: Mapping[str, int]
    """Tries that were not answered, by status and reason."""
    curves: Mapping[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """`run` and `baseline` are told the seed; `baseline` is the same load without what is shown."""

    summary: str
    bounds: Sequence[Bound]
    run: Callable[[int, OnTime], ScenarioResult]
    baseline: Callable[[int, OnTime], ScenarioResult]
    axes: tuple[str, str]
    """What the curves are drawn over, and what they show."""

    def missed(self, outcome: ScenarioResult) -> list[str]:
        """The bounds that were not kept, each with what was measured."""
        return [
            f"{bound}, but is {outcome.figures[bound.figure]}"
            for bound in self.bounds
            if not bound.is_kept_by(outcome.figures)
        ]
