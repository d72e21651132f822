"""One engine under measurement: steps it, makes text as a gateway would, and sums up."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.core import EngineCore
from engine.counters import EngineCounters
from engine.request import Request, RequestOutput
from engine.text_stream import TextStream
from loadtest.percentiles import percentiles
from loadtest.timed_executor import TimedExecutor

_PERCENTS = (50, 99)


class EngineFailed(Exception):
    """A request ended with an error: what was measured means nothing."""


@dataclass
class Answer:
    """One request while it runs; times in seconds of the bench's clock, steps in the run's count."""

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
    """Owns the answers of one run, and what its steps took."""

    def __init__(
        self,
        core: EngineCore,
        executor: TimedExecutor,
        token_bytes: Callable[[int], bytes],
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._executor = executor
        self._token_bytes = token_bytes
        self._clock = clock
        self._before = core.counters()
        self._model_s_before, self._least_s_before = executor.model_s, executor.least_s
        self._begun = clock()
        self._step_s = 0.0
        self._answers: dict[str, Answer] = {}
        self.num_steps = 0

    def add(self, request: Request) -> Answer:
        answer = Answer(self._clock(), self.num_steps, TextStream(self._token_bytes))
        self._answers[request.request_id] = answer
        self._core.add(request)
        return answer

    def step(self) -> list[Answer]:
        """The answers that ended in it. Raises `EngineFailed`."""
        begun = self._clock()
        outputs = self._core.step()
        self._step_s += self._clock() - begun
        self.num_steps += 1
        return [answer for output in outputs if (answer := self._take(output)).is_finished]

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)

    def _take(self, output: RequestOutput) -> Answer:
        if output.finish_reason == "error":
            raise EngineFailed(f"a request ended with {output.error_code}; the lines above say why")
        answer = self._answers[output.request_id]
        answer.text.push(output.token_ids)
        answer.times += [self._clock()] * len(output.token_ids)
        answer.first_step = answer.first_step or self.num_steps
        if output.finish_reason is not None:
            answer.text.finish()
            answer.is_finished = True
        return answer

    def figures(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Latencies are those of `answers`, all complete; everything else is the whole run's."""
        elapsed_s = self._clock() - self._begun
        model_s = self._executor.model_s - self._model_s_before
        num_tokens = sum(len(answer.times) for answer in self._answers.values())
        return {
            "requests": len(answers),
            "output_tokens_per_s": round(num_tokens / elapsed_s, 2),
            **_latencies(answers),
            **_cache_figures(self._before, self._core.counters()),
            **self._limit_share(),
            "overhead_share": round(1 - model_s / elapsed_s, 4),
            "elapsed_s": round(elapsed_s, 3),
            "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }

    def _limit_share(self) -> dict[str, float | str | None]:
        least_s, before_s = self._executor.least_s, self._least_s_before
        if least_s is None or before_s is None:
            return {"limit_share": None, "limit_share_reason": "a tape moves and computes nothing"}
        return {"limit_share": round((least_s - before_s) / self._step_s, 4)}


def milliseconds(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_p{percent}_ms": None if value is None else round(value * 1000, 3)
        for percent, value in zip(_PERCENTS, percentiles(seconds, _PERCENTS), strict=True)
    }


def _latencies(answers: Sequence[Answer]) -> dict[str, float | None]:
    gaps = [late - early for a in answers for early, late in zip(a.times, a.times[1:], strict=False)]
    return milliseconds("ttft", [answer.ttft_s for answer in answers]) | milliseconds("itl", gaps)


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
