"""The load that is offered, now and some time ahead, out of one noisy sample a second.

Pure. Algorithm: the level is the mean since it last changed, of `MEMORY_S` at most, and known to a standard
error. It has changed where both median and mean of the last `NUM_RECENT` samples are further from the mean
of those before than noise explains (`SIGMAS` standard errors, and a tenth): then only the samples that moved
the median are kept. So a step is seen after `NUM_KEPT` seconds, and a burst that is shorter moves little. The
trend is Theil and Sen's slope over `NUM_BLOCKS` means of `BLOCK_S`, counted only where nearly all pairs of
them rise (Kendall's S): a ramp has it, neither noise nor a step. It only adds, and at most doubles the load.
Failure mode: a ramp that is younger than `NUM_BLOCKS` × `BLOCK_S` is followed and not foreseen.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

MEMORY_S = 120.0
NUM_RECENT = 11
NUM_KEPT = NUM_RECENT // 2 + 1
NUM_BASE = 11
"""So many samples at least are compared with."""
SIGMAS = 5.0
LEAST_CHANGE = 0.1
MEDIAN_VARIANCE = 1.57
"""Of a median, ÷ that of a mean of as many normal samples."""
BLOCK_S = 10.0
NUM_BLOCKS = 12
RISING_PAIRS = 60
"""Kendall's S, of 66: by chance once in 37,000; a step in the middle has 36."""
MAX_GROWTH = 2.0


class Sample(NamedTuple):
    at: float
    tokens_per_s: float


class LoadForecast:
    """Owns the samples since the last change of level, and the means that show a trend."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._blocks: deque[Sample] = deque(maxlen=NUM_BLOCKS)
        self._block: list[Sample] = []

    def observe(self, now: float, tokens_per_s: float) -> None:
        """About once a second."""
        sample = Sample(now, tokens_per_s)
        self._samples.append(sample)
        while now - self._samples[0].at >= MEMORY_S:
            self._samples.popleft()
        if self._has_changed():
            self._samples = deque(list(self._samples)[-NUM_KEPT:])
        self._add_to_block(sample)

    @property
    def level(self) -> float:
        """Tokens/s now; 0 while there are too few samples to tell."""
        return fmean(self._values()) if len(self._samples) >= NUM_KEPT else 0.0

    @property
    def standard_error(self) -> float:
        """Of the level, in tokens/s."""
        count = len(self._samples)
        return _deviation(self._values()) / sqrt(count - 1) if count > 1 else 0.0

    @property
    def recent(self) -> float:
        """Median of the last `NUM_RECENT` samples since the last change, whatever noise is in it."""
        return median(self._values()[-NUM_RECENT:]) if self._samples else 0.0

    def expected(self, ahead_s: float) -> float:
        """Tokens/s in `ahead_s` seconds; never below the level of now."""
        slope = self._slope()
        if slope <= 0:
            return self.level
        now = self._blocks[-1].at
        fitted = median(one.tokens_per_s + slope * (now - one.at) for one in self._blocks)
        return max(self.level, min(fitted + slope * ahead_s, MAX_GROWTH * fitted))

    def _values(self) -> list[float]:
        return [one.tokens_per_s for one in self._samples]

    def _has_changed(self) -> bool:
        values = self._values()
        base, recent = values[:-NUM_RECENT], values[-NUM_RECENT:]
        if len(base) < NUM_BASE:
            return False
        usual = fmean(base)
        noise = SIGMAS * _deviation(base) * sqrt(MEDIAN_VARIANCE / NUM_RECENT + 1 / len(base))
        changes = median(recent) - usual, fmean(recent) - usual
        least = max(noise, LEAST_CHANGE * usual)
        return min(changes) > least or max(changes) < -least

    def _add_to_block(self, sample: Sample) -> None:
        if self._block and sample.at - self._block[0].at >= BLOCK_S:
            self._blocks.append(Sample(*(fmean(column) for column in zip(*self._block, strict=True))))
            self._block = []
        self._block.append(sample)

    def _slope(self) -> float:
        """Tokens/s a second; 0 where there is no trend."""
        if len(self._blocks) < NUM_BLOCKS:
            return 0.0
        pairs = list(combinations(self._blocks, 2))
        rising = sum((b.tokens_per_s > a.tokens_per_s) - (b.tokens_per_s < a.tokens_per_s) for a, b in pairs)
        if rising < RISING_PAIRS:
            return 0.0
        return median((b.tokens_per_s - a.tokens_per_s) / (b.at - a.at) for a, b in pairs)


def _deviation(values: list[float]) -> float:
    """Of the population; `statistics.pstdev` is exact, and 30 times as slow."""
    mean = fmean(values)
    return sqrt(fmean((value - mean) ** 2 for value in values))
