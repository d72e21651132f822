"""The numbers of waiting at a gateway: who waits, how long, how well that was foreseen, who was turned away.

Labels are classes and codes: both are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tenants.queued import Share
from tenants.terms import ServiceClass

BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
CODES = ("overloaded", "queue_full", "deadline_exceeded")
SIGNS = ("shorter", "longer")
"""A wait was, than foreseen."""
GAUGES = {
    "gateway_requests_waiting": "Requests that wait at this gateway for a replica's credit",
    "gateway_tokens_waiting": "Prompt tokens of theirs that are not cached",
    "promised_returns": "Clients that were told when to come back, and have not yet",
    "wait_mean_error_seconds": "Actual − foreseen, on the mean of the last waits; above 0: they were longer",
    "first_token_after_turn_seconds": "Reckoned with between an interactive turn and its first token, beside"
    " its own prefill",
    "other_gateways_ratio": "Of what replicas can do, what this gateway thinks is other gateways'",
    "brownout": "1 while answers of batch and of light tiers are shortened lest somebody be turned away",
}


class WaitingMetrics(Collector):
    """`gauges()` tells the values of `GAUGES`, now."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gauges: Callable[[], Mapping[str, float]] = lambda: dict.fromkeys(GAUGES, 0.0)
        self._turn = _histogram(
            registry, "gateway_queue_time", "From a request's place in the queue to its turn", "class"
        )
        self._error = _histogram(
            registry, "wait_error", "Between the foreseen and the actual time until a turn", "sign"
        )
        self._turned_away = Counter(
            "headrace_turned_away_requests_total",
            "Requests that could not wait here, or no longer, by class and code",
            ("class", "code"),
            registry=registry,
        )
        self._begin()
        registry.register(self)

    def _begin(self) -> None:
        """All series are there from the start: a rate misses what begins with 1."""
        for service_class in get_args(ServiceClass):
            self._turn.labels(service_class)
            for code in CODES:
                self._turned_away.labels(service_class, code)
        for sign in SIGNS:
            self._error.labels(sign)

    def observe_turn(self, share: Share, waited_s: float) -> None:
        self._turn.labels(share.service_class).observe(waited_s)

    def count_turned_away(self, share: Share, code: str) -> None:
        self._turned_away.labels(share.service_class, code).inc()

    def observe_wait(self, predicted_s: float, actual_s: float) -> None:
        error_s = actual_s - predicted_s
        self._error.labels(SIGNS[error_s > 0]).observe(abs(error_s))

    def collect(self) -> Iterator[Metric]:
        for name, value in self.gauges().items():
            yield GaugeMetricFamily(f"headrace_{name}", GAUGES[name], value)


def _histogram(registry: CollectorRegistry, name: str, text: str, label: str) -> Histogram:
    return Histogram(f"headrace_{name}_seconds", text, (label,), buckets=BUCKETS_S, registry=registry)
