"""A run by stretches of time: what was offered, what was good, what the replicas could have done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.admission_windows import RAMP_FROM
from loadtest.fleet.figures import service
from loadtest.fleet.pool import Served
from loadtest.fleet.run import CallRecord, FleetRun
from loadtest.slo import Slo
from tenants.service_tokens import service_tokens

WIDTH_S = 10.0


@dataclass(frozen=True)
class Window:
    """Rates in tokens of service a second."""

    begin_s: float
    offered: float
    """Of first tries, with what they ask for."""
    good: float
    """Given to tries that met the objectives, at the time when they got it."""
    capacity: float
    """Of the replicas that took work, each as far as its slow start lets it."""
    num_replicas: float
    """On the mean."""
    num_rejected: int

    @property
    def possible(self) -> float:
        return min(self.offered, self.capacity)


def windows(run: FleetRun, slo: Slo, tokens_per_s_per_replica: float) -> list[Window]:
    """Whole ones of `WIDTH_S`, from the beginning on."""
    count = int(run.ended_s / WIDTH_S)
    offered, good, num_rejected = [0.0] * count, [0.0] * count, [0] * count
    for call in run.calls:
        record = call.record
        if call.tries == 0 and (at := int(record.sent_at / WIDTH_S)) < count:
            offered[at] += service_tokens(record.prompt_tokens) + call.asked_tokens
        if record.is_rejected and (at := int(record.finished_at / WIDTH_S)) < count:
            num_rejected[at] += 1
        if slo.is_met_by(record):
            for time, tokens in _given(call):
                if (at := int(time / WIDTH_S)) < count:
                    good[at] += tokens
    rows = []
    for number in range(count):
        begin_s = number * WIDTH_S
        end_s = begin_s + WIDTH_S
        parts = sum(_part_seconds(one, begin_s, end_s, run.config.ramp_s) for one in run.served.values())
        there = sum(_seconds(one, begin_s, end_s) for one in run.served.values())
        rows.append(
            Window(
                begin_s,
                offered[number] / WIDTH_S,
                good[number] / WIDTH_S,
                parts / WIDTH_S * tokens_per_s_per_replica,
                there / WIDTH_S,
                num_rejected[number],
            )
        )
    return rows


def _given(call: CallRecord) -> Iterable[tuple[float, float]]:
    """When it got how much: its seat's time is what it took, so each of its tokens bears its part of the input."""
    record = call.record
    yield from ((at, service(record) / len(record.token_times)) for at in record.token_times)


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
