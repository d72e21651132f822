"""How the cluster stands, as gauges: every gateway tells the same, so take their maximum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.autoscaling.view import ClusterStatus


class ScalingCollector(Collector):
    """`latest` is what was heard last; nothing is told while that is None."""

    def __init__(self, latest: Callable[[], ClusterStatus | None]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        status = self._latest()
        if status is None:
            return
        replicas = GaugeMetricFamily("headrace_replicas", "Replicas by state", labels=["state"])
        for state, count in status.num_by_state().items():
            replicas.add_metric([state], count)
        yield replicas
        yield GaugeMetricFamily(
            "headrace_replica_eta_seconds",
            "Until the first replica on its way is expected to serve; 0: none is on its way",
            value=status.next_eta_s or 0.0,
        )
        if status.demand is not None:
            yield GaugeMetricFamily(
                "headrace_demand_tokens_per_second",
                "Tokens of service expected to be asked for, one cold start ahead",
                value=status.demand.expected_tokens_per_s,
            )
        yield GaugeMetricFamily(
            "headrace_capacity_tokens_per_second",
            "Tokens of service that the replicas which serve can do, as measured",
            value=status.capacity.tokens_per_s,
        )

    def describe(self) -> Iterator[Metric]:
        """Told apart from `collect`, so that registering asks for nothing yet."""
        return iter(())
