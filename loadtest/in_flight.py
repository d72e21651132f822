"""How evenly the replicas were loaded, seen from the client: who had how many requests, and when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from loadtest.record import RequestRecord


def replica_figures(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Figures of those `records` whose answer named its replica, from sending to the end of the answer.

    `in_flight_max_over_mean` is that of the replicas that were seen.
    """
    named = [record for record in records if record.replica]
    replicas = sorted({record.replica for record in named})
    moments = list(_moments(named))
    return {
        "replicas": {
            replica: {
                "requests": sum(record.replica == replica for record in named),
                "in_flight_mean": _mean_in_flight(moments, replica),
            }
            for replica in replicas
        },
        "without_replica": len(records) - len(named),
        "in_flight_max_over_mean": max_over_mean(moments, len(replicas)),
    }


class Moment(NamedTuple):
    """A stretch of time in which nothing began or ended. Replicas without a request may be left out."""

    seconds: float
    in_flight: Counter[str]


def _moments(records: Sequence[RequestRecord]) -> Iterator[Moment]:
    changes: defaultdict[float, Counter[str]] = defaultdict(Counter)
    for record in records:
        changes[record.sent_at][record.replica] += 1
        changes[record.finished_at][record.replica] -= 1
    in_flight: Counter[str] = Counter()
    since = 0.0
    for now in sorted(changes):
        if in_flight:
            yield Moment(now - since, in_flight)
        changed = Counter(in_flight)
        changed.update(changes[now])
        in_flight, since = +changed, now


def _mean_in_flight(moments: Sequence[Moment], replica: str) -> float:
    """Over the time in which any replica had a request."""
    seconds = sum(moment.seconds for moment in moments)
    busy = sum(moment.seconds * moment.in_flight[replica] for moment in moments)
    return round(busy / seconds, 3) if seconds else 0.0


def max_over_mean(moments: Sequence[Moment], num_replicas: int) -> float | None:
    """Requests in flight on the fullest replica ÷ their mean over all, averaged over time.

    Moments with fewer requests than replicas are left out, for no placement could make them even; None
    if there is no other.
    """
    full = [moment for moment in moments if moment.in_flight.total() >= num_replicas]
    seconds = sum(moment.seconds for moment in full)
    if not seconds:
        return None
    uneven = sum(
        moment.seconds * max(moment.in_flight.values()) * num_replicas / moment.in_flight.total()
        for moment in full
    )
    return round(uneven / seconds, 4)
