"""What is sent and when: a workload, and either fixed times of arrival or users who wait for answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loadtest.arrivals import poisson_arrivals
from loadtest.trace import read_trace, trace_arrivals
from loadtest.trace_prompts import TracePrompts
from loadtest.workload import Workload

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


@dataclass(frozen=True)
class Pace:
    """`rate` requests a second at random, or, if None, as answers come; with no bound `DEFAULT_REQUESTS`."""

    seed: int
    rate: float | None
    num_requests: int | None
    duration_s: float | None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The first `num_requests` rows of a trace, or all; answers end at `max_output_tokens`, if given."""

    file: Path
    seed: int
    vocab_size: int
    num_requests: int | None
    max_output_tokens: int | None
    tick_s: float
    time_scale: float


def workload_traffic(workload: Workload, pace: Pace) -> Traffic:
    num_requests, duration_s = pace.num_requests, pace.duration_s
    if num_requests is None and duration_s is None:
        num_requests = DEFAULT_REQUESTS
    if pace.rate is None:
        return Traffic(workload, num_requests=num_requests, duration_s=duration_s)
    arrivals = poisson_arrivals(pace.rate, pace.seed, num_requests=num_requests, duration_s=duration_s)
    return Traffic(workload, Schedule(arrivals, arrivals[-1] if duration_s is None else duration_s))


def replayed(replay: Replay) -> Traffic:
    """Raises ValueError for a file that is no trace, or too short."""
    rows, most = read_trace(replay.file), replay.num_requests
    if most is not None and most > len(rows):
        raise ValueError(f"{replay.file} holds {len(rows)} rows, fewer than --requests {most}")
    rows = rows[:most]
    arrivals = trace_arrivals(rows, tick_s=replay.tick_s, time_scale=replay.time_scale, seed=replay.seed)
    prompts = TracePrompts(
        rows, seed=replay.seed, vocab_size=replay.vocab_size, max_output_tokens=replay.max_output_tokens
    )
    return Traffic(prompts, Schedule(arrivals, arrivals[-1]))
