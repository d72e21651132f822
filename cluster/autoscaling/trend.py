"""Whether the load rises steadily, and where it will be if it goes on.

Pure. Algorithm: the means of `BLOCK_S` of the last `MEMORY_S` are explained by a level up to some moment and
a straight line from there on, by least squares; of all moments the one that leaves the least unexplained. It
is a rise if the best step in its place would leave `STEP_MARGIN` times as much; noise alone is hardly ever
that much nearer to a line. A rise goes on for as long again as it has lasted; one that has lasted for all
that is remembered, until the load has doubled.
Failure mode: noise hides a rise at first: with ten requests a second to begin with, one by as many each half
minute is seen after 45 s. And in much noise a small step may look like a rise while it is remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import NamedTuple

MEMORY_S = 120.0
BLOCK_S = 5.0
LEAST_BLOCKS = 12
LEAST_RISING = 5
"""So many blocks at least rise: a line through the last few explains anything."""
STEP_MARGIN = 1.3
MAX_GROWTH = 2.0


class Sample(NamedTuple):
    at: float
    tokens_per_s: float


class Rise(NamedTuple):
    """From a level, since a moment."""

    level: float
    slope: float
    """Tokens/s a second."""
    since: float

    def at(self, time: float) -> float:
        return self.level + self.slope * (time - self.since)

    def expected(self, now: float, ahead_s: float) -> float:
        """Tokens/s in `ahead_s` seconds."""
        lasted_s = now - self.since
        is_all_there_is = lasted_s >= MEMORY_S - 2 * BLOCK_S
        goes_on_s = ahead_s if is_all_there_is else min(ahead_s, lasted_s)
        return min(self.at(now + goes_on_s), MAX_GROWTH * self.at(now))


class Trend:
    """Owns the means of the blocks, and what they show."""

    def __init__(self) -> None:
        self.rise: Rise | None = None
        self._blocks: deque[Sample] = deque()
        self._block: list[Sample] = []

    def observe(self, sample: Sample) -> None:
        """About once a second."""
        if self._block and sample.at - self._block[0].at >= BLOCK_S:
            self._blocks.append(Sample(*(fmean(column) for column in zip(*self._block, strict=True))))
            self._block = []
            while self._blocks and sample.at - self._blocks[0].at >= MEMORY_S:
                self._blocks.popleft()
            self.rise = rise_of(self._blocks)
        self._block.append(sample)


def rise_of(blocks: Sequence[Sample]) -> Rise | None:
    """None: they show none."""
    if len(blocks) < LEAST_BLOCKS:
        return None
    values = [block.tokens_per_s for block in blocks]
    fits = [_fit(blocks, values, since) for since, _ in list(blocks)[:-LEAST_RISING]]
    rise, unexplained = min(fits, key=lambda fit: fit[1])
    is_nearer = _beside_a_step(values) > STEP_MARGIN * unexplained
    return rise if rise.slope > 0 and is_nearer else None


def _fit(blocks: Sequence[Sample], values: Sequence[float], since: float) -> tuple[Rise, float]:
    """And the squares that it leaves unexplained."""
    passed = [max(0.0, block.at - since) for block in blocks]
    slope, level = linear_regression(passed, values)
    unexplained = sum((level + slope * x - y) ** 2 for x, y in zip(passed, values, strict=True))
    return Rise(level, slope, since), unexplained


def _beside_a_step(values: Sequence[float]) -> float:
    """What the best of all steps leaves unexplained; the block in which it is is neither here nor there."""
    return min(_scatter(values[:at]) + _scatter(values[at + 1 :]) for at in range(1, len(values) - 1))


def _scatter(values: Sequence[float]) -> float:
    """Squares, as seen from the mean."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)
