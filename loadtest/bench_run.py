"""One engine under measurement: steps it, makes text as a gateway would, and sums up."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.core import EngineCore
from engine.counters import EngineCounters
from engine.request import Request, RequestOutput
from engine.step import StepPlan
from engine.text_stream import TextStream
from loadtest.percentiles import percentiles
from loadtest.watched_executor import WatchedExecutor

_PERCENTS = (50, 99)


class EngineFailed(Exception):
    """A request ended with an error: what was measured means nothing."""


@dataclass
class MeasuredRequest:
    """One request and its tokens' times, in seconds of the bench's clock; steps in the run's count."""

    begun: float
    begun_step: int
    text: TextStream
    times: list[float] = field(default_factory=list)
    first_step: int | None = None
    is_finished: bool = False

    @property
    def ttft_s(self) -> float:
        return self.times[0] - self.begun


class BenchRun:
    """Owns the requests of one run, and what its steps took.

    The engine is `core`, around `watched`. `clock` is the engine's. `least_s_of`: seconds that a step
    must take at least; None where there is no such limit.
    """

    def __init__(
        self,
        core: EngineCore,
        watched: WatchedExecutor,
        token_bytes: Callable[[int], bytes],
        clock: Callable[[], float],
        least_s_of: Callable[[StepPlan], float] | None = None,
    ) -> None:
        self._core = core
        self._token_bytes = token_bytes
        self._clock = clock
        self._least_s_of = least_s_of
        self._before = core.counters()
        self._executor_s_before = core.executor_s
        self._begun = clock()
        self._step_s = 0.0
        self._least_s = 0.0
        self._requests: dict[str, MeasuredRequest] = {}
        self.num_steps = 0
        watched.on_plan = self._count_limit

    def add(self, request: Request) -> MeasuredRequest:
        measured = MeasuredRequest(self._clock(), self.num_steps, TextStream(self._token_bytes))
        self._requests[request.request_id] = measured
        self._core.add(request)
        return measured

    def step(self) -> list[MeasuredRequest]:
        """The requests that ended in it. Raises `EngineFailed`."""
        begun = self._clock()
        outputs = self._core.step()
        self._step_s += self._clock() - begun
        self.num_steps += 1
        return [request for output in outputs if (request := self._take(output)).is_finished]

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)

    def _count_limit(self, plan: StepPlan) -> None:
        if self._least_s_of is not None:
            self._least_s += self._least_s_of(plan)

    def _take(self, output: RequestOutput) -> MeasuredRequest:
        if output.finish_reason == "error":
            raise EngineFailed(f"a request ended with {output.error_code}; the lines above say why")
        request = self._requests[output.request_id]
        request.text.push(output.token_ids)
        request.times += [self._clock()] * len(output.token_ids)
        request.first_step = request.first_step or self.num_steps
        if output.finish_reason is not None:
            request.text.finish()
            request.is_finished = True
        return request

    def figures(self, requests: Sequence[MeasuredRequest]) -> dict[str, Any]:
        """Latencies are those of `requests`, all complete; everything else is the whole run's."""
        elapsed_s = self._clock() - self._begun
        executor_s = self._core.executor_s - self._executor_s_before
        num_tokens = sum(len(request.times) for request in self._requests.values())
        return {
            "requests": len(requests),
            "output_tokens_per_s": round(num_tokens / elapsed_s, 2),
            **_latencies(requests),
            **_cache_figures(self._before, self._core.counters()),
            **self._limit_share(),
            "overhead_share": round(1 - executor_s / self._step_s, 4),
            "elapsed_s": round(elapsed_s, 3),
            "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }

    def _limit_share(self) -> dict[str, float | str | None]:
        if self._least_s_of is None:
            return {"limit_share": None, "limit_share_reason": "a tape moves and computes nothing"}
        return {"limit_share": round(self._least_s / self._step_s, 4)}


def milliseconds(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_p{percent}_ms": None if value is None else round(value * 1000, 3)
        for percent, value in zip(_PERCENTS, percentiles(seconds, _PERCENTS), strict=True)
    }


def _latencies(requests: Sequence[MeasuredRequest]) -> dict[str, float | None]:
    gaps = [late - early for r in requests for early, late in zip(r.times, r.times[1:], strict=False)]
    return milliseconds("ttft", [request.ttft_s for request in requests]) | milliseconds("itl", gaps)


def _cache_figures(before: EngineCounters, after: EngineCounters) -> dict[str, float | int | None]:
    """What happened to blocks between the two."""
    queries = after.prefix_queries_tokens_total - before.prefix_queries_tokens_total
    hits = after.prefix_hits_tokens_total - before.prefix_hits_tokens_total
    owned = after.kv_owned_slots_total - before.kv_owned_slots_total
    empty = after.kv_empty_slots_total - before.kv_empty_slots_total
    return {
        "kv_waste": round(empty / owned, 5) if owned else 0.0,
        "hit_rate": round(hits / queries, 4) if queries else None,
        "preemptions": after.preemptions_total - before.preemptions_total,
    }
