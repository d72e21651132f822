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
    computed_tokens_total: int = 0
    """Prompt and output tokens that went through the model; recomputed ones each time."""
    recomputed_tokens_total: int = 0
    """Of these, the ones that a preemption had thrown away."""
    evictions_total: int = 0
    """Cached blocks that were reused for something else."""
    failed_requests_total: int = 0
    """Requests and siblings that ended with an error, alone or with their step."""
    failed_steps_total: int = 0
    prefix_miss_cold_tokens_total: int = 0
    """With the hits and the other misses, each prompt token that was looked up once."""
    prefix_miss_evicted_tokens_total: int = 0
    prefix_miss_diverged_tokens_total: int = 0
    prefix_miss_below_block_tokens_total: int = 0
    prefix_attainable_hits_tokens_total: int = 0
    """Hits, had nothing ever been evicted."""

    @property
    def kv_cache_usage_ratio(self) -> float:
        return self.blocks_in_use / self.blocks_total if self.blocks_total else 0.0
