"""A replica's own metrics, `headrace_engine_*`, on a loopback port of its own.

Request latencies are not here: they are observed once, in the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.run_dir import RunDir
from engine.counters import EngineCounters
from engine.request import RequestOutput

_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

_GAUGES = {
    "requests_running": "Requests in the running batch",
    "requests_waiting": "Requests accepted and not running",
    "queued_tokens": "Prompt tokens accepted and not yet computed",
    "blocks_total": "KV blocks in the pool",
    "blocks_in_use": "KV blocks owned by requests",
    "blocks_evictable": "KV blocks that hold cached prefixes of nobody's",
    "kv_waste_ratio": "Slots without a token / slots of blocks owned by running requests",
}
_COUNTERS = {
    "preemptions_total": "Preemptions of running requests",
    "prefix_queries_tokens_total": "Prompt tokens looked up in the prefix cache",
    "prefix_hits_tokens_total": "Prompt tokens served from the prefix cache",
    "kv_empty_slots_total": "Slots without a token, summed over steps",
    "kv_owned_slots_total": "Slots of blocks owned by requests, summed over steps",
}


class EngineMetrics:
    """Owns the replica's registry. `observe_step` is called by the engine thread only."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._step_seconds = Histogram(
            "headrace_engine_step_seconds",
            "Time of one engine step",
            buckets=_STEP_BUCKETS_S,
            registry=self._registry,
        )
        self._tokens = Counter(
            "headrace_engine_generation_tokens", "Tokens generated", registry=self._registry
        )
        self.integrity_errors = Counter(
            "headrace_engine_integrity_errors",
            "Broken invariants found while idle",
            registry=self._registry,
        )

    def observe_step(self, outputs: list[RequestOutput], seconds: float) -> None:
        self._step_seconds.observe(seconds)
        self._tokens.inc(sum(len(output.token_ids) for output in outputs))

    def serve(self, replica_id: str, run_dir: RunDir, counters: Callable[[], EngineCounters]) -> None:
        """Opens the port and puts it into the run directory's targets."""
        self._registry.register(_CounterCollector(counters))
        server, _ = start_http_server(0, addr="127.0.0.1", registry=self._registry)
        address = f"127.0.0.1:{server.server_address[1]}"
        run_dir.add_target(address, {"process": "replica", "replica": replica_id})


class _CounterCollector(Collector):
    """The engine's counters as of the last step."""

    def __init__(self, counters: Callable[[], EngineCounters]) -> None:
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        counters = self._counters()
        for field, help_text in _GAUGES.items():
            yield GaugeMetricFamily(f"headrace_engine_{field}", help_text, value=getattr(counters, field))
        for field, help_text in _COUNTERS.items():
            yield CounterMetricFamily(f"headrace_engine_{field}", help_text, value=getattr(counters, field))
