"""The loads on which routing policies are compared, as flags of `headrace serve` and `headrace load`.

All run on tapes: a step takes `step_ms` whatever it holds, up to the token budget, so a prompt costs as many
steps as the budget goes into its uncached tokens, and a replica that is given too much makes requests wait.
Requests come so many a step: with another step everything is the same in slower or faster time.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from engine.config import BLOCK_SIZE

STEP_MS = 40.0
"""Long beside what a step costs in CPU, so that four replicas on two quiet cores keep their time."""

PREFIXES, PREFIX_TOKENS, SUFFIX_TOKENS, OUTPUT_TOKENS = 20, 1000, 150, 32
POOL_PROMPTS = 8
"""Whole requests that a replica's pool holds: two fifths of the prefixes, so that all do not fit into one."""

EVEN_REQUESTS_PER_STEP = 0.8
"""Without any hit four replicas would be at 92 % of what they can do."""
HOT_REQUESTS_PER_STEP = 1.6
"""80 % on one prefix is 95 % of what one replica can do, if it computes suffixes alone."""

TRACE_SECONDS_PER_STEP = 0.16
"""The whole trace's prompts are then 80 % of what four replicas can do."""
TRACE_CONTEXT = 131_072
TRACE_POOL_TOKENS = 4 * TRACE_CONTEXT


class RoutingCase(NamedTuple):
    """`pool_tokens` of KV a replica; the null block comes on top."""

    name: str
    model: str
    pool_tokens: int
    serve: tuple[str, ...]
    load: tuple[str, ...]

    def kv_memory(self, block_bytes: int) -> int:
        return (-(-self.pool_tokens // BLOCK_SIZE) + 1) * block_bytes


def even_case(requests: int, step_ms: float) -> RoutingCase:
    """Twenty prefixes, all alike."""
    return _shared_prefix("even", requests, step_ms, EVEN_REQUESTS_PER_STEP)


def hot_case(requests: int, step_ms: float) -> RoutingCase:
    """80 % of the load on one prefix."""
    return _shared_prefix("hot", requests, step_ms, HOT_REQUESTS_PER_STEP, "--hot-share=0.8")


def trace_case(file: Path, requests: int | None, step_ms: float) -> RoutingCase:
    """Real arrivals and reuse. Answers are cut to `OUTPUT_TOKENS`: long ones cost a tape much CPU."""
    time_scale = step_ms / 1000 / TRACE_SECONDS_PER_STEP
    rows = () if requests is None else (f"--requests={requests}",)
    return RoutingCase(
        name="trace",
        model=f"tape:?step_ms={step_ms:g}&max_model_len={TRACE_CONTEXT}",
        pool_tokens=TRACE_POOL_TOKENS,
        serve=("--max-num-batched-tokens=2048", f"--max-model-len={TRACE_CONTEXT}"),
        load=(f"--trace={file}", f"--time-scale={time_scale:g}", f"--output-tokens={OUTPUT_TOKENS}", *rows),
    )


def _shared_prefix(
    name: str, requests: int, step_ms: float, requests_per_step: float, *load: str
) -> RoutingCase:
    request_tokens = PREFIX_TOKENS + SUFFIX_TOKENS + OUTPUT_TOKENS
    return RoutingCase(
        name=name,
        model=f"tape:?step_ms={step_ms:g}",
        pool_tokens=POOL_PROMPTS * -(-request_tokens // BLOCK_SIZE) * BLOCK_SIZE,
        serve=("--max-num-batched-tokens=256",),
        load=(
            "--workload=shared-prefix",
            f"--prefixes={PREFIXES}",
            f"--prefix-tokens={PREFIX_TOKENS}",
            f"--suffix-tokens={SUFFIX_TOKENS}",
            f"--output-tokens={OUTPUT_TOKENS}",
            f"--requests={requests}",
            f"--rate={1000 * requests_per_step / step_ms:g}",
            *load,
        ),
    )
