"""The load that is offered, now and some time ahead, out of one noisy sample a second.

Pure. Algorithm: the level is the mean since it last changed, of `MEMORY_S` at most, and known to a standard
error. It has changed where both median and mean of the last `NUM_RECENT` samples are further from the mean
of those before than noise explains (`SIGMAS` standard errors, and a tenth): then only the samples that moved
the median are kept. So a step is seen after `NUM_KEPT` seconds, and a burst that is shorter moves little. A
rise (`trend.py`) only adds to it.
Failure mode: growth is followed and not foreseen until it stands out of noise.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from statistics import fmean, median

from cluster.autoscaling.trend import MEMORY_S, Sample, Trend

NUM_RECENT = 11
NUM_KEPT = NUM_RECENT // 2 + 1
NUM_BASE = 11
"""So many samples at least are compared with."""
SIGMAS = 5.0
LEAST_CHANGE = 0.1
MEDIAN_VARIANCE = 1.57
"""Of a median, ÷ that of a mean of as many normal samples."""


class LoadForecast:
    """Owns the samples since the last change of level."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._trend = Trend()

    def observe(self, now: float, tokens_per_s: float) -> None:
        """About once a second."""
        sample = Sample(now, tokens_per_s)
        self._samples.append(sample)
        while now - self._samples[0].at >= MEMORY_S:
            self._samples.popleft()
        if self._has_changed():
            self._samples = deque(list(self._samples)[-NUM_KEPT:])
        self._trend.observe(sample)

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
        """Median of the last `NUM_RECENT` samples since the last change, less its standard error."""
        values = self._values()[-NUM_RECENT:]
        return median(values) - _deviation(values) * sqrt(MEDIAN_VARIANCE / len(values)) if values else 0.0

    def expected(self, ahead_s: float) -> float:
        """Tokens/s in `ahead_s` seconds; never below the level of now."""
        return self.certain(ahead_s, doubt=0.0)

    def certain(self, ahead_s: float, doubt: float) -> float:
        """Of what is expected: the level is doubted by so many standard errors, a rise is sure."""
        level = max(0.0, self.level - doubt * self.standard_error)
        rise = self._trend.rise
        return level if rise is None else max(level, rise.expected(self._samples[-1].at, ahead_s))

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


def _deviation(values: list[float]) -> float:
    """Of the population; `statistics.pstdev` is exact, and 30 times as slow."""
    mean = fmean(values)
    return sqrt(fmean((value - mean) ** 2 for value in values))
