"""What can be chosen for a kernel: some values for each gene, in order of size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

Candidate = tuple[int, ...]
"""One value for each gene, in the order of the space."""


@dataclass(frozen=True)
class Space:
    genes: Mapping[str, Sequence[int]]

    @property
    def size(self) -> int:
        return math.prod(map(len, self.genes.values()))

    def named(self, candidate: Candidate) -> dict[str, int]:
        return dict(zip(self.genes, candidate, strict=True))

    def random(self, rng: Random) -> Candidate:
        return tuple(rng.choice(values) for values in self.genes.values())

    def crossed(self, one: Candidate, other: Candidate, rng: Random) -> Candidate:
        """Each gene from one of the two."""
        return tuple(rng.choice(pair) for pair in zip(one, other, strict=True))

    def mutated(self, candidate: Candidate, rng: Random) -> Candidate:
        """One gene a step up or down: neighbours in size do alike."""
        at = rng.randrange(len(candidate))
        values = list(self.genes.values())[at]
        place = values.index(candidate[at]) + rng.choice((-1, 1))
        moved = values[min(max(place, 0), len(values) - 1)]
        return (*candidate[:at], moved, *candidate[at + 1 :])
