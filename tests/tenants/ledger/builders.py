"""Asks, settlements and a clock for tests of the ledger."""

from __future__ import annotations

from typing import Any

from tenants.audit import Actor
from tenants.ledger import money
from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.settlement import Progress, Settlement
from tenants.terms import Limits, Prices

NOON_US = 1_764_504_000 * 10**6
"""2025-11-30, 12:00 UTC: the last day of a month."""
PATIENCE_S = 30.0
"""What a call to Redis may take on a machine that is busy with other tests."""
EACH_TOKEN_ONE = Prices(input=10**6, output=10**6)
EVERYTHING = Limits(
    requests_per_min=600,
    input_tokens_per_min=60_000,
    output_tokens_per_min=60_000,
    max_concurrency=10,
    budget_day=10**6,
    budget_month=10**7,
)
FULL: dict[str, Any] = {"of_tenant": EVERYTHING, "key_limits": EVERYTHING, "prices": EACH_TOKEN_ONE}
"""Of an ask: every limit that there is."""


class Clock:
    """Tells µs since the epoch; moves only when told."""

    def __init__(self, now_us: int = NOON_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 10**6)


def an_ask(
    request_id: str = "r1",
    of_tenant: Limits | None = None,
    *,
    key_limits: Limits | None = None,
    **fields: Any,
) -> Ask:
    """Of tenant acme by key_1: 10 prompt tokens, one answer of at most 20."""
    own = [] if key_limits is None else [Scope(fields.get("key_id", "key_1"), key_limits)]
    plain: dict[str, Any] = {
        "request_id": request_id,
        "tenant_id": "acme",
        "key_id": "key_1",
        "model": "tiny",
        "gateway_id": "g1",
        "started_at": NOON_US / 10**6,
        "scopes": (Scope(None, of_tenant or Limits()), *own),
        "prices": Prices(),
        "prompt_tokens": 10,
        "n": 1,
        "max_tokens": 20,
    }
    return Ask(**plain | fields)


def settled(ask: Ask, outcome: str = "finished", **fields: Any) -> Settlement:
    """As its gateway would settle it; by default nothing was cached, and every token asked for came."""
    served = outcome != "unserved"
    tokens = {
        "prompt_tokens": ask.prompt_tokens if served else 0,
        "cached_tokens": 0,
        "completion_tokens": ask.n * ask.max_tokens if served else 0,
    }
    tokens |= {name: value for name, value in fields.items() if name in tokens}
    paid = outcome not in ("failed", "unserved")
    plain: dict[str, Any] = {
        "request_id": ask.request_id,
        "tenant_id": ask.tenant_id,
        "key_id": ask.key_id,
        "model": ask.model,
        "gateway_id": ask.gateway_id,
        "started_at": ask.started_at,
        "ended_at": ask.started_at + 1,
        "outcome": outcome,
        "n": ask.n,
        "cost": money.cost(ask.prices, **tokens) if paid else 0,
        **tokens,
    }
    return Settlement(**plain | fields)


def a_top_up(amount: int, **fields: Any) -> Adjustment:
    """Of the day's budget of tenant acme."""
    plain: dict[str, Any] = {
        "adjustment_id": "a1",
        "tenant_id": "acme",
        "key_id": None,
        "window": "day",
        "action": "top_up",
        "amount": amount,
        "at": NOON_US / 10**6,
        "by": Actor("admin", "key_9"),
    }
    return Adjustment(**plain | fields)


def a_reset(spent: int, **fields: Any) -> Adjustment:
    """When so much was spent of it."""
    return a_top_up(spent, **{"action": "reset"} | fields)


def progress(ask: Ask, completion_tokens: int = 0, cached_tokens: int = 0) -> Progress:
    return Progress(ask.tenant_id, ask.request_id, cached_tokens, completion_tokens)
