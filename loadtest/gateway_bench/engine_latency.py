"""The tape's engine called directly, in this process: what latencies through HTTP are compared with."""

from __future__ import annotations

from typing import Any

from loadtest.bench_engine import BenchLoad
from loadtest.bench_setup import bench_settings, plan_bench
from loadtest.gateway_bench.answers import PROMPT
from loadtest.gateway_bench.server import tape_model


def engine_latency(step_ms: float, *, num_requests: int, output_tokens: int) -> dict[str, Any]:
    """Figures of `bench engine`, one request at a time. Raises `CannotBench`."""
    with tape_model(step_ms) as model:
        settings = bench_settings(model=model, max_num_seqs=1, max_num_batched_tokens=256)
        load = BenchLoad(
            num_requests=num_requests, concurrency=1, prompt_tokens=len(PROMPT), output_tokens=output_tokens
        )
        return plan_bench(settings).load().bench().run(load)
