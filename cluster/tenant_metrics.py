"""The numbers of tenancy: who was let in, who was refused and why, what was taken, spent, and is left.

`tenant` is a bounded label: the caller maps it (`telemetry.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from tenants.ledger.grant import Granted, Refused, Standing
from tenants.ledger.settlement import Settlement
from tenants.outcomes.outcome import Kept
from tenants.store import Trouble

Counters = Callable[..., Counter]
OTHER = "other"
"""Label of all that have none of their own."""
KeyedResult = Literal[
    Kept, "unstored", "lost", "freed", "replayed", "in_progress", "gone", "reused", "refused"
]
"""How a request with an `Idempotency-Key` ended (`freed`: in an error; `unstored`: Redis did not take the
outcome; `lost`: the lease had run out), what a repeat was told (`gone`: the outcome was not kept), or
`refused`: without Redis nobody could say."""


class TenantMetrics:
    def __init__(self, counter: Counters, registry: CollectorRegistry, label: Callable[[str], str]) -> None:
        self._label = label
        self._admitted = counter("admitted_requests", "Requests that the ledger let in", "tenant")
        self._refused = counter(
            "refused_requests", "Requests that a limit refused, by limit", "tenant", "reason"
        )
        self._soft = counter(
            "soft_limit_requests", "Requests let in with a fifth of a limit left or less", "tenant", "limit"
        )
        self._reserved_cost = counter("reserved_cost", "Micro-units reserved for requests", "tenant")
        self._settled_cost = counter("settled_cost", "Micro-units charged for requests", "tenant")
        self._settled = counter("settled_requests", "Requests settled, by outcome", "tenant", "outcome")
        self._remaining = Gauge(
            "headrace_limit_remaining_ratio",
            "Share of a limit that was left when its tenant asked last",
            ("tenant", "limit"),
            registry=registry,
        )
        self._offline = counter(
            "degraded_admissions", "Requests decided without Redis, by its trouble", "trouble"
        )
        for trouble in get_args(Trouble):
            self._offline.labels(trouble)
        self._keyed = counter(
            "keyed_requests", "Requests with an Idempotency-Key, by what became of them", "result"
        )
        for result in get_args(KeyedResult):
            self._keyed.labels(result)
        self._is_up = Gauge(
            "headrace_record_up",
            "1 while Redis answers what admission asks; 0: limits are this gateway's share",
            registry=registry,
        )
        self._is_up.set(1)

    def count_granted(self, tenant_id: str, granted: Granted) -> None:
        tenant = self._label(tenant_id)
        self._admitted.labels(tenant).inc()
        self._reserved_cost.labels(tenant).inc(granted.reserved_cost)
        self._observe(tenant, granted.standing)
        for kind in {gauge.kind for gauge in granted.standing.gauges if gauge.is_soft}:
            self._soft.labels(tenant, kind).inc()

    def count_refused(self, tenant_id: str, refused: Refused) -> None:
        tenant = self._label(tenant_id)
        self._refused.labels(tenant, "never" if refused.is_never else refused.kind).inc()
        self._observe(tenant, refused.standing)

    def count_settled(self, settlement: Settlement) -> None:
        tenant = self._label(settlement.tenant_id)
        self._settled.labels(tenant, settlement.outcome).inc()
        self._settled_cost.labels(tenant).inc(settlement.cost)

    def count_offline(self, trouble: Trouble) -> None:
        self._offline.labels(trouble).inc()

    def count_keyed(self, result: KeyedResult) -> None:
        self._keyed.labels(result).inc()

    def tell_up(self, is_up: bool) -> None:
        self._is_up.set(is_up)

    def _observe(self, tenant: str, standing: Standing) -> None:
        if tenant == OTHER:  # the last of many would stand for all of them
            return
        shares: dict[str, float] = {}
        for gauge in standing.gauges:
            share = gauge.remaining / max(gauge.limit, 1)
            shares[gauge.kind] = min(share, shares.get(gauge.kind, 1.0))
        for kind, share in shares.items():
            self._remaining.labels(tenant, kind).set(share)
