"""Who asks what, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from loadtest.arrivals import poisson_arrivals
from loadtest.fleet.call import Ask
from loadtest.fleet.prompts import Prompts


class Stage(NamedTuple):
    """So many requests a second, for so long."""

    rate: float
    seconds: float


@dataclass(frozen=True)
class OpenLoopTraffic:
    """Independent clients: whatever becomes of the others, each comes when it comes."""

    prompts: Prompts
    stages: Sequence[Stage]

    def arrivals(self, seed: int) -> Iterator[float]:
        """In seconds, ascending."""
        begin = 0.0
        for number, stage in enumerate(self.stages):
            own_seed = Random(f"{seed}:{self.prompts.customer.tenant_id}:{number}").getrandbits(32)
            if stage.rate:
                for at in poisson_arrivals(stage.rate, own_seed, duration_s=stage.seconds):
                    yield begin + at
            begin += stage.seconds


@dataclass(frozen=True)
class ClosedLoopTraffic:
    """`num_clients`, each of whom asks again as soon as it has its answer, until `make` gives None."""

    make: Callable[[int], Ask | None]
    num_clients: int
