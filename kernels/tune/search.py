"""Evolution over a space of choices.

Each generation the best quarter stays and the rest is replaced by their children: two parents, each the
better one of two drawn from the living, give each gene at random, and one gene moves a step. Instead of a
child that was there before comes a random candidate that was not: nothing is measured twice. Failure mode:
genes that help only together, each alone a step for the worse, are found by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from kernels.tune.space import Candidate, Space

Costs = Callable[[Sequence[Candidate]], Sequence[float]]
"""Of each candidate, lower is better; infinity: it cannot be."""
TRIES = 20
"""For a candidate that wasn't there before; then the space is taken for exhausted."""


@dataclass(frozen=True, slots=True)
class Scored:
    cost: float
    candidate: Candidate


def evolve(
    space: Space,
    costs: Costs,
    rng: Random,
    *,
    generations: int,
    population: int,
    start: Sequence[Candidate] = (),
) -> list[Scored]:
    """Everything that was measured, best first; equals in the order in which they came.

    `start` is measured first: what is used today, so that the result is never worse.
    """
    search = _Search(space, rng)
    living = search.filled(list(dict.fromkeys(start)), population)
    scored = search.measured(living, costs)
    for _ in range(generations):
        elite = scored[: max(1, population // 4)]
        children = [search.child(scored[:population]) for _ in range(population - len(elite))]
        fresh = search.filled([child for child in children if child is not None], population - len(elite))
        if not fresh:
            break
        scored = sorted([*scored, *search.measured(fresh, costs)], key=lambda one: one.cost)
    return scored


class _Search:
    """Owns what was seen."""

    def __init__(self, space: Space, rng: Random) -> None:
        self._space = space
        self._rng = rng
        self._seen: set[Candidate] = set()

    def measured(self, candidates: Sequence[Candidate], costs: Costs) -> list[Scored]:
        found = costs(candidates)
        scored = [Scored(cost, candidate) for cost, candidate in zip(found, candidates, strict=True)]
        return sorted(scored, key=lambda one: one.cost)

    def child(self, parents: Sequence[Scored]) -> Candidate | None:
        """None: it was there before."""
        one, other = (self._winner(parents) for _ in range(2))
        child = self._space.crossed(one.candidate, other.candidate, self._rng)
        child = self._space.mutated(child, self._rng)
        if child in self._seen:
            return None
        self._seen.add(child)
        return child

    def filled(self, candidates: list[Candidate], number: int) -> list[Candidate]:
        """With random ones that were not there before, as far as there are any."""
        self._seen.update(candidates)
        tries = 0
        while len(candidates) < number and len(self._seen) < self._space.size and tries < TRIES:
            candidate = self._space.random(self._rng)
            tries += 1
            if candidate not in self._seen:
                self._seen.add(candidate)
                candidates.append(candidate)
                tries = 0
        return candidates

    def _winner(self, parents: Sequence[Scored]) -> Scored:
        return min(self._rng.choice(parents), self._rng.choice(parents), key=lambda one: one.cost)
