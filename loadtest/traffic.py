"""What is sent and when: a workload, and either fixed times of arrival or users who wait for answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from loadtest.arrivals import poisson_arrivals
from loadtest.shared_prefix import SharedPrefix
from loadtest.trace import read_trace, trace_arrivals
from loadtest.trace_prompts import TracePrompts
from loadtest.workload import RandomPrompts, Workload

DEFAULT_REQUESTS = 100
DEFAULT_OUTPUT_TOKENS = 64


class Schedule(NamedTuple):
    """Times at which requests are due, ascending seconds from the start, spread over `offered_s`."""

    arrivals: tuple[float, ...]
    offered_s: float


class Traffic(NamedTuple):
    """With a schedule the loop is open. Without one it is closed, and exactly one bound is set."""

    workload: Workload
    schedule: Schedule | None = None
    num_requests: int | None = None
    duration_s: float | None = None


def workload_traffic(
    *, rate: float | None, requests: int | None, duration: float | None, seed: int, **given: Any
) -> Traffic:
    """From the options of that name."""
    if requests is None and duration is None:
        requests = DEFAULT_REQUESTS
    workload = _workload(seed=seed, **given)
    if rate is None:
        return Traffic(workload, num_requests=requests, duration_s=duration)
    arrivals = poisson_arrivals(rate, seed, num_requests=requests, duration_s=duration)
    return Traffic(workload, Schedule(arrivals, arrivals[-1] if duration is None else duration))


def _workload(
    *,
    workload: str,
    seed: int,
    output_tokens: int | None,
    vocab_size: int,
    completions: bool,
    prompt_tokens: int,
    prefixes: int,
    prefix_tokens: int,
    suffix_tokens: int,
    hot_share: float | None,
    **_: Any,
) -> Workload:
    output_tokens = output_tokens or DEFAULT_OUTPUT_TOKENS
    if workload == "random":
        return RandomPrompts(seed, prompt_tokens, output_tokens, vocab_size, is_text=not completions)
    return SharedPrefix(seed, prefixes, prefix_tokens, suffix_tokens, output_tokens, vocab_size, hot_share)


def trace_traffic(
    *,
    trace: Path,
    requests: int | None,
    seed: int,
    output_tokens: int | None,
    vocab_size: int,
    time_scale: float,
    trace_tick_s: float,
    **_: Any,
) -> Traffic:
    """From the options of that name. Raises ValueError for a file that is no trace, or too short."""
    rows = read_trace(trace)
    if requests is not None and requests > len(rows):
        raise ValueError(f"{trace} holds {len(rows)} rows, fewer than --requests {requests}")
    rows = rows[:requests]
    arrivals = trace_arrivals(rows, tick_s=trace_tick_s, time_scale=time_scale, seed=seed)
    prompts = TracePrompts(rows, seed=seed, vocab_size=vocab_size, max_output_tokens=output_tokens)
    return Traffic(prompts, Schedule(arrivals, arrivals[-1]))
