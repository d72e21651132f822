"""When requests of an open loop are due: known exactly before the first one is sent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from random import Random


def poisson_arrivals(
    rate: float, seed: int, *, num_requests: int | None = None, duration_s: float | None = None
) -> tuple[float, ...]:
    """Ascending times in seconds from the start, `rate` a second on average, independent of each other.

    `num_requests` of them, or all before `duration_s`. Raises ValueError unless exactly one is given.
    """
    if num_requests is not None and duration_s is None:
        return tuple(islice(_poisson(rate, seed), num_requests))
    if duration_s is not None and num_requests is None:
        return tuple(takewhile(lambda at: at < duration_s, _poisson(rate, seed)))
    raise ValueError("exactly one of num_requests and duration_s must be given")


def _poisson(rate: float, seed: int) -> Iterator[float]:
    random = Random(f"{seed}:arrivals")
    at = 0.0
    while True:
        at += random.expovariate(rate)
        yield at
