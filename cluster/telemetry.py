"""The gateway's numbers: what users wait for, what they use, and the replicas' state as last told.

Request latencies are observed here and nowhere else. Every label is bounded: routes are templates,
and only the first `MAX_TENANT_LABELS` tenants that this process serves have names, others are `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.generation import Usage
from cluster.tenant_metrics import OTHER, TenantMetrics
from cluster.waiting_metrics import WaitingMetrics
from engine.counters import EngineCounters
from engine.prefix_stats import MISS_REASONS
from engine.request import Timing

MAX_TENANT_LABELS = 100
BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0),
)
BUCKETS_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

_EACH_ANSWER = "each of a request's n answers counts"

Replicas = Callable[[], Mapping[str, EngineCounters]]


class Telemetry:
    """Owns the gateway's registry. `replicas` gives each replica's counters from its last message."""

    def __init__(self, replicas: Replicas) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series for nothing
        self.registry = CollectorRegistry()
        self.registry.register(_ReplicaCollector(replicas))
        self._num_in_flight = 0
        self._tenants: set[str] = set()
        self._time_to_first_token = self._histogram(
            "time_to_first_token", "From a request's arrival at the gateway to its first text", "tenant"
        )
        self._inter_token_latency = self._histogram(
            "inter_token_latency", "Between two pieces of text of one answer"
        )
        self._e2e_latency = self._histogram(
            "e2e_request_latency",
            "From arrival at the gateway to the last text of a complete answer",
            "tenant",
        )
        self._phases = _PhaseTimes(self._histogram)
        self._prefixes = _PrefixUse(self._counter, self.registry)
        self._prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens of requests that were started, cached ones too", "tenant"
        )
        self._generation_tokens = self._counter("generation_tokens", "Output tokens in answers", "tenant")
        self._discarded_tokens = self._counter(
            "discarded_tokens", "Tokens that an engine made and that are in no answer"
        )
        self._stale_keys = self._counter(
            "stale_keys", "Requests let in by a key looked up before Redis went away"
        )
        self._lost_links = self._counter("lost_links", "Links to replicas that broke or fell silent")
        self._resumed = self._counter(
            "resumed_requests", "Running requests that went on at another replica, by reason", "reason"
        )
        for reason in ("lost", "left", "failed_step"):
            self._resumed.labels(reason)  # there from the start: a rate misses what begins with 1
        self._poisonous = self._counter(
            "poisonous_requests", "Requests refused because their replicas were lost again and again"
        )
        self._steering = _Steering(self._counter, self.registry)
        self.tenants = TenantMetrics(self._counter, self.registry, self._tenant)
        self.waiting = WaitingMetrics(self.registry)
        self._requests = self._counter("requests", "HTTP requests by status and route", "code", "route")

    @property
    def num_in_flight(self) -> int:
        """HTTP requests whose answer is not complete."""
        return self._num_in_flight

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        self._num_in_flight += 1
        try:
            yield
        finally:
            self._num_in_flight -= 1

    def observe_first_token(self, tenant_id: str, seconds: float) -> None:
        self._time_to_first_token.labels(self._tenant(tenant_id)).observe(seconds)

    def observe_gap(self, seconds: float) -> None:
        self._inter_token_latency.observe(seconds)

    def observe_complete(self, tenant_id: str, seconds: float) -> None:
        self._e2e_latency.labels(self._tenant(tenant_id)).observe(seconds)

    def observe_timing(self, timing: Timing) -> None:
        """Once for each answer that an engine has ended, aborted ones too: who gives up has waited."""
        self._phases.observe(timing)

    def count_usage(self, tenant_id: str, usage: Usage) -> None:
        """Once for each started request, complete or not."""
        tenant = self._tenant(tenant_id)
        self._prompt_tokens.labels(tenant).inc(usage.prompt_tokens)
        self._generation_tokens.labels(tenant).inc(usage.completion_tokens)
        self._prefixes.count(tenant, usage)

    def count_discarded(self, num_tokens: int) -> None:
        self._discarded_tokens.inc(num_tokens)

    def count_stale_key(self) -> None:
        self._stale_keys.inc()

    def count_lost_link(self) -> None:
        """A replica is unheard or gone that was not asked to leave, or left before its answers had ended.

        The second, too, for one whose health check failed may be asked to leave just before it dies.
        """
        self._lost_links.inc()

    def count_resumed(self, reason: str) -> None:
        """`lost`: its replica died; `left`: it left and did not wait; `failed_step`."""
        self._resumed.labels(reason).inc()

    def count_poisonous(self) -> None:
        self._poisonous.inc()

    def count_prediction(self, predicted_tokens: int, actual_tokens: int) -> None:
        """Once for each request: cached prompt tokens as thought at its last routing, and as they were."""
        self._steering.count_prediction(predicted_tokens, actual_tokens)

    def count_lookup(self, is_ok: bool) -> None:
        """Of the prefix index, once for each request that asked it."""
        self._steering.count_lookup(is_ok)

    def count_request(self, status: int, route: str | None) -> None:
        """`route` is the route's template; None for a path that is none of ours."""
        self._requests.labels(str(status), route or OTHER).inc()

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)

    def _tenant(self, tenant_id: str) -> str:
        if tenant_id not in self._tenants:
            if len(self._tenants) >= MAX_TENANT_LABELS:
                return OTHER
            self._tenants.add(tenant_id)
        return tenant_id

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"headrace_{name}_seconds", text, labels, buckets=BUCKETS_S, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"headrace_{name}_total", text, labels, registry=self.registry)


class _PhaseTimes:
    """Where the time of answers went, as their engine tells it at the end."""

    def __init__(self, histogram: Callable[[str, str], Histogram]) -> None:
        self._queue = histogram(
            "request_queue_time", f"From arrival at the engine until it first computes; {_EACH_ANSWER}"
        )
        self._prefill = histogram(
            "request_prefill_time",
            f"From when the engine first computes to the first token; {_EACH_ANSWER}",
        )
        self._decode = histogram(
            "request_decode_time",
            f"From the first token to the last; answers of one token are left out; {_EACH_ANSWER}",
        )
        self._preempted = histogram(
            "request_preempted_time",
            f"Time that preemptions took out of prefill and decode, mostly 0; {_EACH_ANSWER}",
        )

    def observe(self, timing: Timing) -> None:
        """Parts that were not reached are left out."""
        self._queue.observe(timing.queued_s)
        if timing.prefill_s > 0:
            self._prefill.observe(timing.prefill_s)
        if timing.decode_s > 0:
            self._decode.observe(timing.decode_s)
        self._preempted.observe(timing.preempted_s)


class _PrefixUse:
    """How much of the prompts the prefix cache had, and why not the rest, by tenant."""

    def __init__(self, counter: Callable[..., Counter], registry: CollectorRegistry) -> None:
        self._cached_tokens = counter(
            "cached_prompt_tokens", "Prompt tokens served from the prefix cache", "tenant"
        )
        self._misses = counter(
            "prefix_miss_tokens", "Prompt tokens not found in the prefix cache, by reason", "tenant", "reason"
        )
        self._diverged_at = Histogram(
            "headrace_prefix_diverged_at_tokens",
            "Position of the first token that differs from the tenant's earlier prompt most like it",
            ("tenant",),
            buckets=BUCKETS_TOKENS,
            registry=registry,
        )

    def count(self, tenant: str, usage: Usage) -> None:
        self._cached_tokens.labels(tenant).inc(usage.cached_tokens)
        if usage.lookup is None:
            return
        for reason in MISS_REASONS:
            self._misses.labels(tenant, reason).inc(getattr(usage.lookup, f"{reason}_tokens"))
        if usage.lookup.diverged_at is not None:
            self._diverged_at.labels(tenant).observe(usage.lookup.diverged_at)


class _Steering:
    """What the gateway knew of the replicas' caches when it routed, against what was there."""

    def __init__(self, counter: Callable[..., Counter], registry: CollectorRegistry) -> None:
        self._predicted = counter("predicted_cached_tokens", "Prompt tokens thought cached where they went")
        self._missed = counter(
            "mispredicted_cached_tokens",
            "Prompt tokens that were thought cached and were not (over), or the other way round (under)",
            "direction",
        )
        self._lookups = counter("prefix_index_lookups", "Look-ups in the prefix index", "result")
        self._registry = registry
        self._state: Gauge | None = None
        """None before the first look-up: a gateway without requests does not know, and tells nothing."""

    def count_prediction(self, predicted_tokens: int, actual_tokens: int) -> None:
        self._predicted.inc(predicted_tokens)
        self._missed.labels("over").inc(max(0, predicted_tokens - actual_tokens))
        self._missed.labels("under").inc(max(0, actual_tokens - predicted_tokens))

    def count_lookup(self, is_ok: bool) -> None:
        self._lookups.labels("ok" if is_ok else "failed").inc()
        if self._state is None:
            self._state = Gauge(
                "headrace_prefix_index_up",
                "1 if the last look-up in the prefix index was answered; else requests are routed by load",
                registry=self._registry,
            )
        self._state.set(is_ok)


_GAUGES = {
    "kv_cache_usage_ratio": "KV blocks owned by requests / blocks in the pool",
    "kv_waste_ratio": "KV slots that hold no token / KV slots of running requests",
    "requests_running": "Requests in the running batch",
    "requests_waiting": "Requests accepted and not yet running",
}


class _ReplicaCollector(Collector):
    """The replicas' gauges at the time of the scrape; a replica that is gone has no series.

    Every gateway tells the same replicas: take the maximum over gateways, not the sum. What only grows
    is left to the replicas' own ports (`engine_metrics.py`), where nothing tells it twice.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def collect(self) -> Iterable[Metric]:
        replicas = self._replicas()
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"headrace_{name}", text, labels=["replica"])
            for replica_id, counters in replicas.items():
                gauge.add_metric([replica_id], getattr(counters, name))
            yield gauge

    def describe(self) -> Iterable[Metric]:
        """Told apart from `collect`, so that registering asks for no replicas yet."""
        return ()
