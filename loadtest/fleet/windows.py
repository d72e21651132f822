"""A run by stretches of time: what was offered, what was good, what the replicas could have done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cluster.admission_windows import RAMP_FROM
from loadtest.fleet.figures import service
from loadtest.fleet.pool import Served
from loadtest.fleet.run import CallRecord, FleetRun
from loadtest.slo import Slo

WIDTH_S = 10.0
Given = tuple[float, float]
"""When, and how many tokens of service."""


@dataclass(frozen=True)
class Window:
    """Rates in tokens of service a second."""

    begin_s: float
    offered: float
    """Of first tries, with what they ask for, as if nothing were cached."""
    good: float
    """Given to tries that met the objectives, at the time when they got it."""
    capacity: float
    """Of the replicas that took work, each as far as its slow start lets it."""

    @property
    def possible(self) -> float:
        return min(self.offered, self.capacity)


def windows(
    run: FleetRun,
    slo: Slo,
    tokens_per_s_per_replica: float,
    *,
    answer_s: float = 0.0,
    width_s: float = WIDTH_S,
) -> list[Window]:
    """Whole ones, from the beginning on; `answer_s`: what an answer takes that nothing delays.

    What is offered counts in the middle of that: what comes at the end of a window cannot be given in it.
    """
    begins = [number * width_s for number in range(int(run.ended_s / width_s))]
    offered = _in_windows(_offered(run.calls, answer_s / 2), width_s, len(begins))
    good = _in_windows(_good(run.calls, slo), width_s, len(begins))
    return [
        Window(
            begin_s,
            offered[number] / width_s,
            good[number] / width_s,
            tokens_per_s_per_replica * _replicas(run, begin_s, begin_s + width_s),
        )
        for number, begin_s in enumerate(begins)
    ]


def _in_windows(given: Iterable[Given], width_s: float, count: int) -> Sequence[float]:
    sums = [0.0] * count
    for at, tokens in given:
        if (number := int(at / width_s)) < count:
            sums[number] += tokens
    return sums


def _offered(calls: Iterable[CallRecord], later_s: float) -> Iterator[Given]:
    for call in calls:
        if call.tries == 0:
            yield call.record.sent_at + later_s, call.record.prompt_tokens + call.asked_tokens


def _good(calls: Iterable[CallRecord], slo: Slo) -> Iterator[Given]:
    """Each token bears its part of the input, for a seat is held as long."""
    for record in (call.record for call in calls if slo.is_met_by(call.record)):
        yield from ((at, service(record) / record.output_tokens) for at in record.token_times)


def _replicas(run: FleetRun, begin_s: float, end_s: float) -> float:
    """On the mean, one in its slow start as the part that its window has."""
    seconds = (_part_seconds(one, begin_s, end_s, run.config.ramp_s) for one in run.served.values())
    return sum(seconds) / (end_s - begin_s)


def _seconds(served: Served, begin_s: float, end_s: float) -> float:
    """In which the replica took work."""
    until = end_s if served.until is None else min(served.until, end_s)
    return max(0.0, until - max(served.since, begin_s))


def _part_seconds(served: Served, begin_s: float, end_s: float, ramp_s: float) -> float:
    """The same, a second of the slow start counted as the part that its window has then."""
    begin, seconds = max(served.since, begin_s), _seconds(served, begin_s, end_s)
    ramp = min(max(0.0, served.since + ramp_s - begin), seconds)
    missing_at = [
        (1 - RAMP_FROM) * (1 - (at - served.since) / ramp_s) for at in (begin, begin + ramp) if ramp
    ]
    return seconds - ramp * sum(missing_at) / 2
