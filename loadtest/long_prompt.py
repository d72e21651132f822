"""Short prompts that arrive at random steps while long ones are computed: how long they wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from loadtest.bench_requests import RequestMaker
from loadtest.bench_run import BenchRun, MeasuredRequest, milliseconds
from loadtest.percentiles import percentile

_LONG_OUTPUT_TOKENS = 2
_MAX_ARRIVALS_PER_STEP = 0.25


@dataclass(frozen=True)
class LongPromptLoad:
    """One long prompt at a time, the next when the last has ended; short ones come one by one.

    At least `num_requests` short ones come, and go on to come until a long prompt was computed whole.
    At most `concurrency` of them are there at once. They bring on average at most a quarter of
    `max_num_batched_tokens` a step, so that none waits for another one for long.
    """

    long_prompt_tokens: int
    num_requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    max_num_batched_tokens: int
    seed: int = 0

    @property
    def arrivals_per_step(self) -> float:
        return min(_MAX_ARRIVALS_PER_STEP, self.max_num_batched_tokens / (4 * self.prompt_tokens))


def run_beside_long_prompts(
    run: BenchRun, load: LongPromptLoad, maker: RequestMaker, on_step: Callable[[int], None]
) -> dict[str, Any]:
    """The figures of the run, latencies of the short ones. Steps count from arrival to first token."""
    rng = Random(load.seed)
    shorts: list[MeasuredRequest] = []
    longs: list[MeasuredRequest] = []
    while True:
        is_over = len(shorts) >= load.num_requests and bool(longs and longs[0].times)
        num_live = sum(not request.is_finished for request in shorts)
        if is_over and num_live == 0:
            break
        if not is_over and (not longs or longs[-1].is_finished):
            request_id = f"long-{len(longs)}"
            longs.append(run.add(maker.request(request_id, load.long_prompt_tokens, _LONG_OUTPUT_TOKENS)))
        if not is_over and num_live < load.concurrency and rng.random() < load.arrivals_per_step:
            request_id = f"short-{len(shorts)}"
            shorts.append(run.add(maker.request(request_id, load.prompt_tokens, load.output_tokens)))
        run.step()
        on_step(sum(request.is_finished for request in shorts))
    if not longs[-1].is_finished:
        run.abort(f"long-{len(longs) - 1}")
    return {
        **run.figures(shorts),
        "concurrency": load.concurrency,
        "long_prompt_tokens": load.long_prompt_tokens,
        "long_ttft_ms": round(longs[0].ttft_s * 1000, 3),
        **_steps(shorts),
        **milliseconds("short_ttft", [request.ttft_s for request in shorts]),
    }


def _steps(shorts: list[MeasuredRequest]) -> dict[str, float | None]:
    steps = [(request.first_step or 0) - request.begun_step for request in shorts]
    return {
        "short_ttft_steps_p50": percentile(steps, 50),
        "short_ttft_steps_p99": percentile(steps, 99),
        "short_ttft_steps_max": max(steps),
    }
