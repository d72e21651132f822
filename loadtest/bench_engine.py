"""The engine alone, no Ray: a closed loop of requests on one `EngineCore`, in this process.

Text is made as a gateway would (`engine/text_stream.py`), so the figures are those of the engine with
its last stage. `limit_share` stays None until the machine's limits are measured beside it.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from engine.block_hash import hash_blocks, model_root
from engine.config import ModelConfig
from engine.core import EngineCore
from engine.counters import EngineCounters
from engine.executor import Done, Executor
from engine.request import Request, RequestOutput, SamplingParams
from engine.step import StepPlan
from engine.text_stream import TextStream
from loadtest.percentiles import percentiles

_PERCENTS = (50, 99)


class EngineFailed(Exception):
    """A request ended with an error: what was measured means nothing."""


@dataclass(frozen=True)
class BenchLoad:
    """`num_requests` requests, `concurrency` at a time, each of exactly these lengths."""

    num_requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    seed: int = 0


@dataclass
class _Answer:
    """One request of the bench while it runs; times in seconds of the bench's clock."""

    begun: float
    text: TextStream
    times: list[float] = field(default_factory=list)


class TimedExecutor:
    """Measures the time spent in the model, to tell it from the engine's own."""

    def __init__(self, executor: Executor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self.model_s = 0.0

    def submit(self, plan: StepPlan) -> Done:
        begun = self._clock()
        pending = self._executor.submit(plan)
        result = pending.result()
        self.model_s += self._clock() - begun
        return Done(result)


class EngineBench:
    """Runs a load on `core` and measures it. `vocab_size` bounds the random prompt tokens."""

    def __init__(
        self,
        core: EngineCore,
        executor: TimedExecutor,
        model: ModelConfig,
        token_bytes: Callable[[int], bytes],
        block_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._core = core
        self._executor = executor
        self._model = model
        self._token_bytes = token_bytes
        self._block_size = block_size
        self._clock = clock

    def run(self, load: BenchLoad, on_step: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
        """The figures of the run. `on_step(done)` hears how many requests have ended.

        Raises `EngineFailed`.
        """
        waiting = self._requests(load)
        running: dict[str, _Answer] = {}
        answers: list[_Answer] = []
        before, model_before = self._core.counters(), self._executor.model_s
        begun = self._clock()
        while True:
            while len(running) < load.concurrency and (request := next(waiting, None)):
                running[request.request_id] = _Answer(self._clock(), TextStream(self._token_bytes))
                self._core.add(request)
            if not running:
                break
            for output in self._core.step():
                self._take(running, answers, output)
            on_step(len(answers))
        elapsed_s = self._clock() - begun
        return {
            "requests": len(answers),
            "concurrency": load.concurrency,
            "output_tokens_per_s": round(sum(len(a.times) for a in answers) / elapsed_s, 2),
            **_latencies(answers),
            **_cache_figures(before, self._core.counters()),
            "limit_share": None,
            "overhead_share": round(1 - (self._executor.model_s - model_before) / elapsed_s, 4),
            "elapsed_s": round(elapsed_s, 3),
            "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }

    def _take(self, running: dict[str, _Answer], answers: list[_Answer], output: RequestOutput) -> None:
        if output.finish_reason == "error":
            raise EngineFailed(f"a request ended with {output.error_code}; the lines above say why")
        answer = running[output.request_id]
        answer.text.push(output.token_ids)
        answer.times += [self._clock()] * len(output.token_ids)
        if output.finish_reason is not None:
            answer.text.finish()
            answers.append(running.pop(output.request_id))

    def _requests(self, load: BenchLoad) -> Iterator[Request]:
        rng = Random(load.seed)
        root = model_root(self._model, kv_dtype="bench")
        shared = self._tokens(rng, load.shared_prefix_tokens)
        sampling = SamplingParams(max_tokens=load.output_tokens, temperature=0.0, ignore_eos=True)
        for number in range(load.num_requests):
            prompt = (*shared, *self._tokens(rng, load.prompt_tokens - load.shared_prefix_tokens))
            yield Request(
                request_id=f"bench-{load.concurrency}-{number}",
                prompt_token_ids=prompt,
                sampling=sampling,
                hash_root=root,
                block_hashes=hash_blocks(root, prompt, self._block_size),
            )

    def _tokens(self, rng: Random, count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(self._model.vocab_size) for _ in range(count))


def _latencies(answers: list[_Answer]) -> dict[str, float | None]:
    ttft = [answer.times[0] - answer.begun for answer in answers]
    gaps = [late - early for a in answers for early, late in zip(a.times, a.times[1:], strict=False)]
    return {
        f"{name}_p{percent}_ms": None if value is None else round(value * 1000, 3)
        for name, seconds in (("ttft", ttft), ("itl", gaps))
        for percent, value in zip(_PERCENTS, percentiles(seconds, _PERCENTS), strict=True)
    }


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
