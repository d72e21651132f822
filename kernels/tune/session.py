"""One run of the tuner over some problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from kernels.tune.problem import Problem
from kernels.tune.search import Costs, Scored, evolve
from kernels.tune.table import MEASURED, Entry

MARGINS = {MEASURED: 0.01}
"""How much better than what is used today a candidate must be to take its place, as a share: measured, what
repeated measurements differ by; else what a prediction may well be wrong by."""
GUESS_MARGIN = 0.05


@dataclass(frozen=True)
class Outcome:
    problem: Problem
    found: Scored | None
    """None: no candidate can be. What is used today, if nothing is better by a margin."""
    start: Scored
    num_measured: int

    def as_json(self) -> dict[str, object]:
        chosen = None if self.found is None else self.problem.space.named(self.found.candidate)
        return {
            "op": self.problem.op,
            "problem": self.problem.name,
            "shape": dict(self.problem.shape),
            "choice": chosen,
            "cost_us": None if self.found is None else self.found.cost * 1e6,
            "start": self.problem.space.named(self.start.candidate),
            "start_us": self.start.cost * 1e6 if math.isfinite(self.start.cost) else None,
            "candidates": self.num_measured,
        }

    def entry(self, basis: str, gpu: str, versions: Mapping[str, str], seed: int) -> Entry | None:
        if self.found is None:
            return None
        choice = self.problem.space.named(self.found.candidate)
        return Entry(self.problem.op, self.problem.shape, choice, basis, gpu, versions, seed)


def tuned(
    problems: Iterable[Problem],
    costs_of: Callable[[Problem], Costs],
    *,
    basis: str,
    seed: int,
    generations: int,
    population: int,
) -> Iterator[Outcome]:
    """Each problem has its own randomness: what one finds does not depend on which others were asked."""
    for problem in problems:
        rng = Random(f"{seed} {problem.op} {problem.name}")
        scored = evolve(
            problem.space,
            costs_of(problem),
            rng,
            generations=generations,
            population=population,
            start=[problem.start],
        )
        start = next(one for one in scored if one.candidate == problem.start)
        yield Outcome(problem, chosen(scored, start, MARGINS.get(basis, GUESS_MARGIN)), start, len(scored))


def chosen(scored: Sequence[Scored], start: Scored, margin: float) -> Scored | None:
    best = scored[0]
    if best.cost < start.cost * (1.0 - margin):
        return best
    return start if math.isfinite(start.cost) else None
