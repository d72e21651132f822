"""Examples in the API's description; a test holds each against its schema."""

from __future__ import annotations

from typing import Any

TERMS: dict[str, Any] = {
    "requests_per_min": 600,
    "input_tokens_per_min": 1_000_000,
    "output_tokens_per_min": 200_000,
    "burst_s": 60,
    "max_concurrency": 64,
    "budget_day": 20_000_000,
    "budget_month": None,
    "weight": 4,
    "service_class": "interactive",
    "max_queue_len": 256,
    "max_context_tokens": None,
    "max_output_tokens": 8192,
    "models": None,
    "input_price": 500_000,
    "cached_input_price": 50_000,
    "output_price": 1_500_000,
    "offline": "serve",
}
NEW_TIER = {"name": "gold", "terms": {"requests_per_min": 600, "budget_day": 20_000_000, "weight": 4}}
TIER = {"object": "tier", "name": "gold", "terms": TERMS, "version": 1}
TIER_CHANGE = {"terms": {"requests_per_min": 1200}}
NEW_TENANT = {"tenant_id": "acme", "name": "Acme Inc.", "tier": "gold", "overrides": {"budget_day": None}}
TENANT = {
    "object": "tenant",
    "tenant_id": "acme",
    "name": "Acme Inc.",
    "tier": "gold",
    "overrides": {"budget_day": None},
    "disabled": False,
    "created_at": 1796000000.0,
    "version": 1,
}
FREEZE = {"disabled": True}
NEW_KEY = {"tenant_id": "acme", "name": "web", "scopes": ["inference"], "addresses": ["10.0.0.0/8"]}
KEY = {
    "object": "key",
    "key_id": "key_0123456789abcdef",
    "tenant_id": "acme",
    "name": "web",
    "scopes": ["inference"],
    "hint": "wxyz",
    "limits": None,
    "addresses": ["10.0.0.0/8"],
    "created_at": 1796000000.0,
    "expires_at": None,
    "version": 1,
    "rotated_to": None,
}
NEW_KEY_ANSWER = {**KEY, "key": "hr-…"}
ROTATION_ANSWER = {
    **NEW_KEY_ANSWER,
    "old_key_id": "key_fedcba9876543210",
    "old_expires_at": 1796003600.0,
}
KEY_CHANGE = {"expires_in_s": 86_400}
ROTATION = {"overlap_s": 3600}
TOP_UP = {"amount": 5_000_000, "window": "day"}
RESET = {"window": "month"}
LIMITS = {
    "object": "limits",
    "tenant_id": "acme",
    "key_id": None,
    "model": "tiny",
    "terms": TERMS,
    "key_limits": None,
    "limits": [
        {
            "kind": "requests",
            "key_id": None,
            "limit": 600,
            "remaining": 599,
            "reset_s": 0.1,
            "soft": False,
        }
    ],
}
AUDIT = {
    "object": "list",
    "data": [
        {
            "object": "audit_entry",
            "entry_id": "1796000000000-0",
            "at": 1796000000.0,
            "actor": {"tenant_id": "admin", "key_id": "key_0123456789abcdef"},
            "action": "tenant.update",
            "target": "acme",
            "changes": {"disabled": [False, True]},
        }
    ],
    "has_more": False,
    "next_before": None,
}
STATUS = {
    "object": "status",
    "at": 1796000000.0,
    "model": "tiny",
    "min_replicas": 1,
    "max_replicas": 4,
    "target": 2,
    "reason": "2100 tokens/s expected in 30 s need 2 replica(s)",
    "trouble": None,
    "replicas": [
        {"replica_id": "ab12", "state": "serving", "stage": None, "in_stage_s": None, "eta_s": None},
        {"replica_id": "cd34", "state": "starting", "stage": "weights", "in_stage_s": 2.0, "eta_s": 12.0},
    ],
    "demand": {
        "offered_tokens_per_s": 1800.0,
        "shed_tokens_per_s": 0.0,
        "expected_tokens_per_s": 2100.0,
        "backlog_tokens": 9000,
    },
    "capacity": {"tokens_per_s": 1600.0, "tokens_per_s_per_replica": 1600.0},
    "headroom": {"wanted": 1.2, "actual": 0.76},
    "cold_start": {
        "total_s": 30.0,
        "stages_s": {
            "node": 1.0,
            "import": 9.0,
            "weights": 8.0,
            "KV pool": 1.0,
            "warm-up": 7.0,
            "golden": 3.0,
            "join": 1.0,
        },
    },
}


def page(item: Any) -> dict[str, Any]:
    return {"object": "list", "data": [item], "has_more": False, "next_after": None}
