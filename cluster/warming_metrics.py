"""The numbers of warming: how much was computed on new replicas before anybody asked for it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class WarmingMetrics:
    """What the engine makes for it, a token a request, is among the discarded tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "headrace_warming_requests_total",
            "Shared prefixes that a new replica computed before requests asked for them",
            registry=registry,
        )
        self._tokens = Counter(
            "headrace_warmed_tokens_total", "Tokens of these that were not cached there", registry=registry
        )

    def count_warmed(self, num_tokens: int) -> None:
        self._requests.inc()
        self._tokens.inc(num_tokens)
