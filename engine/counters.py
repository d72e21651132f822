"""The engine's figures after a step, for gauges, routing and benches."""

from __future__ import annotations

import msgspec


class EngineCounters(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Crosses the link to the gateways as it is."""

    requests_running: int
    requests_waiting: int
    queued_tokens: int
    """Prompt tokens that are accepted and not yet computed."""
    blocks_total: int
    """Without the null block."""
    blocks_in_use: int
    """Ref count ≥ 1."""
    blocks_evictable: int
    kv_waste_ratio: float
    """Slots without a token ÷ slots of blocks in use, now; 0 when none is."""
    preemptions_total: int
    prefix_queries_tokens_total: int
    prefix_hits_tokens_total: int
    kv_empty_slots_total: int = 0
    """Σ over steps; with `kv_owned_slots_total` the mean waste, weighted by steps and slots."""
    kv_owned_slots_total: int = 0
