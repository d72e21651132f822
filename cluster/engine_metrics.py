"""A replica's own metrics, `headrace_engine_*`, on a loopback port of its own; and what its start took.

Request latencies are not here: they are observed once, in the gateway. No label but the prefix
cache's few reasons, the index's three states and the stages of a start: Prometheus adds which replica
it was from the targets' labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.index.prefix_index import IndexState
from cluster.index.publisher import IndexFigures
from cluster.run_dir import RunDir
from engine.counters import EngineCounters
from engine.prefix_stats import MISS_REASONS
from engine.request import RequestOutput

_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_GAUGES = {
    "requests_running": ("requests_running", "Requests in the running batch"),
    "requests_waiting": ("requests_waiting", "Requests accepted and not running"),
    "queued_tokens": ("queued_tokens", "Prompt tokens accepted and not yet computed"),
    "blocks_total": ("blocks", "KV blocks in the pool"),
    "blocks_in_use": ("blocks_in_use", "KV blocks owned by requests"),
    "blocks_evictable": ("blocks_evictable", "KV blocks that hold cached prefixes and that no request uses"),
    "kv_waste_ratio": ("kv_waste_ratio", "KV slots that hold no token / KV slots of running requests"),
}
"""Field of the counters → name and help text."""
_COUNTERS = {
    "preemptions_total": ("preemptions", "Preemptions of running requests"),
    "computed_tokens_total": (
        "computed_tokens",
        "Prompt and output tokens computed, those computed again too",
    ),
    "recomputed_tokens_total": ("recomputed_tokens", "Tokens computed again after a preemption"),
    "evictions_total": ("evictions", "Cached blocks that were reused for something else"),
    "prefix_queries_tokens_total": (
        "prefix_cache_queries_tokens",
        "Prompt tokens looked up in the prefix cache",
    ),
    "prefix_hits_tokens_total": ("prefix_cache_hits_tokens", "Prompt tokens served from the prefix cache"),
    "prefix_attainable_hits_tokens_total": (
        "prefix_cache_attainable_hits_tokens",
        "Prompt tokens that a cache without a limit would have served",
    ),
    "kv_empty_slots_total": ("kv_empty_slots", "KV slots of requests that hold no token, summed over steps"),
    "kv_owned_slots_total": ("kv_owned_slots", "KV slots of requests, summed over steps"),
    "failed_requests_total": (
        "failed_requests",
        "Answers that ended with an error, alone or with their step",
    ),
    "failed_steps_total": ("failed_steps", "Steps without a result"),
}


class EngineMetrics:
    """Owns the replica's registry. `observe_step` is called by the engine thread only.

    `counters` gives the engine's figures as of the last step, `index` those of the index feed,
    `start_seconds` holds what each stage of the start took. A replica whose engine failed or stands still is
    not seen here, for it ends its process: the gateways count the links that they lost.
    """

    def __init__(
        self,
        counters: Callable[[], EngineCounters],
        index: Callable[[], IndexFigures] = IndexFigures,
        start_seconds: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series for nothing
        self.registry = CollectorRegistry()
        self.registry.register(_CounterCollector(counters))
        self.registry.register(_IndexCollector(index))
        self._step_seconds = Histogram(
            "headrace_engine_step_seconds",
            "Time of one engine step",
            buckets=_STEP_BUCKETS_S,
            registry=self.registry,
        )
        self._executor_seconds = self._counter(
            "executor_seconds", "Part of the step time that the model takes"
        )
        self._tokens = self._counter("generation_tokens", "Tokens generated")
        self.integrity_errors = self._counter("integrity_errors", "Broken invariants found while idle")
        start = Gauge(
            "headrace_replica_start_seconds",
            "What each stage of this replica's start took; import: from the start of its process",
            ("stage",),
            registry=self.registry,
        )
        for stage, seconds in start_seconds.items():
            start.labels(stage).set(seconds)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"headrace_engine_{name}", text, registry=self.registry)

    def observe_step(self, outputs: list[RequestOutput], seconds: float, executor_seconds: float) -> None:
        """The share of `seconds` that is not `executor_seconds` is the engine's own overhead."""
        self._step_seconds.observe(seconds)
        self._executor_seconds.inc(executor_seconds)
        self._tokens.inc(sum(len(output.token_ids) for output in outputs))

    def serve(self, replica_id: str, run_dir: RunDir) -> None:
        """Opens the port and puts it into the run directory's targets."""
        server, _ = start_http_server(0, addr="127.0.0.1", registry=self.registry)
        address = f"127.0.0.1:{server.server_address[1]}"
        run_dir.add_target(address, {"process": "replica", "replica": replica_id})


class _CounterCollector(Collector):
    """What the engine counts itself."""

    def __init__(self, counters: Callable[[], EngineCounters]) -> None:
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        counters = self._counters()
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"headrace_engine_{name}", text, value=getattr(counters, field))
        yield GaugeMetricFamily(
            "headrace_engine_kv_cache_usage_ratio",
            "KV blocks owned by requests / blocks in the pool",
            value=counters.kv_cache_usage_ratio,
        )
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"headrace_engine_{name}", text, value=getattr(counters, field))
        yield self._misses(counters)

    def _misses(self, counters: EngineCounters) -> Metric:
        misses = CounterMetricFamily(
            "headrace_engine_prefix_cache_miss_tokens",
            "Prompt tokens looked up and not found in the prefix cache, by reason",
            labels=["reason"],
        )
        for reason in MISS_REASONS:
            misses.add_metric([reason], getattr(counters, f"prefix_miss_{reason}_tokens_total"))
        return misses

    def describe(self) -> Iterable[Metric]:
        """Told apart from `collect`, so that registering asks for no counters yet."""
        return ()


_INDEX = {
    "published_total": ("published_claims", "Claims told to the prefix index, once each"),
    "repaired_total": ("repaired_claims", "Claims that the prefix index did not have as told"),
    "failures_total": ("failures", "Calls to the prefix index that failed"),
}
"""Field of the figures → name and help text."""


class _IndexCollector(Collector):
    """What the replica knows of its part of the prefix index."""

    def __init__(self, figures: Callable[[], IndexFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        state = GaugeMetricFamily(
            "headrace_engine_prefix_index_state",
            "1 for the state that this replica's part of the prefix index is in",
            labels=["state"],
        )
        for name in get_args(IndexState):
            state.add_metric([name], float(name == figures.state))
        yield state
        yield GaugeMetricFamily(
            "headrace_engine_prefix_index_queued_claims",
            "Claims that wait to be told to the prefix index",
            value=figures.queued,
        )
        for field, (name, text) in _INDEX.items():
            yield CounterMetricFamily(
                f"headrace_engine_prefix_index_{name}", text, value=getattr(figures, field)
            )

    def describe(self) -> Iterable[Metric]:
        return ()
