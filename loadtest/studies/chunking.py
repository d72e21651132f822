"""What chunked prefill gains: how long a short request waits beside long prompts.

With whole prefill a prompt is computed in one step, and all others wait for it: who arrives has no
first token, who runs no next one. Chunked, a step never holds more than the token budget, and long
prompts get at most half of it while a shorter one waits. Both run through the production scheduler;
whole prefill is a budget that any prompt fits into. Long prompts come one after the other, short
ones at random moments, so that one always meets a step under way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from typing import Any, NamedTuple

from engine.config import BLOCK_SIZE, EngineConfig
from engine.request import RequestOutput
from loadtest.percentiles import percentile
from loadtest.studies.lengths import Lengths
from loadtest.studies.virtual_engine import EIGHT_BILLION, StepTime, VirtualEngine

MAX_STEPS = 3
"""To a first token: what is left of the step under way, and ~2 more."""


@dataclass(frozen=True)
class ChunkingStudy:
    """Every request makes `output_tokens`; short ones come with exponential gaps, `rate_per_s`."""

    long_tokens: int = 32_768
    short_tokens: int = 128
    output_tokens: int = 32
    num_short: int = 300
    rate_per_s: float = 5.0
    chunked_budget: int = 2048
    max_num_seqs: int = 64
    seed: int = 0
    step_time: StepTime = EIGHT_BILLION

    def run(self) -> dict[str, Any]:
        # Twice the prompt: long ones get half of a step's tokens.
        whole = self._run(2 * (self.long_tokens + self.max_num_seqs))
        chunked = self._run(self.chunked_budget)
        gain = round(whole["short_ttft_p99_ms"] / chunked["short_ttft_p99_ms"], 1)
        return {
            "held": chunked["short_ttft_steps_p99"] <= MAX_STEPS and gain > 1,
            "long_prompt_tokens": self.long_tokens,
            "short_prompt_tokens": self.short_tokens,
            "requests": self.num_short,
            "short_ttft_p99_gain": gain,
            "rows": [{"prefill": "whole", **whole}, {"prefill": "chunked", **chunked}],
        }

    def _run(self, budget: int) -> dict[str, Any]:
        context = self.long_tokens + self.output_tokens
        engine = VirtualEngine(
            EngineConfig(
                num_blocks=2 * self.max_num_seqs * context // BLOCK_SIZE,
                max_model_len=context,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=budget,
                enable_prefix_caching=False,
            ),
            self.step_time,
        )
        return _Run(self, engine).run()


class _Times(NamedTuple):
    """One request, in seconds of the engine's clock."""

    arrival: float
    tokens: list[float]

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.arrival


class _Run:
    """Owns the times of one run: of every request, and of the ends of steps."""

    def __init__(self, study: ChunkingStudy, engine: VirtualEngine) -> None:
        self._study = study
        self._engine = engine
        self._times: dict[str, _Times] = {}
        self._step_ends: list[float] = []

    def run(self) -> dict[str, Any]:
        arrivals = deque(self._arrivals())
        self._add("long", self._study.long_tokens, arrival=0.0)
        while arrivals or self._engine.has_work():
            while arrivals and arrivals[0] <= self._engine.now:
                self._add("short", self._study.short_tokens, arrival=arrivals.popleft())
            for output in self._step():
                if output.request_id.startswith("long") and output.finish_reason and arrivals:
                    self._add("long", self._study.long_tokens, arrival=self._engine.now)
        return self._figures()

    def _arrivals(self) -> list[float]:
        rng = Random(self._study.seed)
        gaps = (rng.expovariate(self._study.rate_per_s) for _ in range(self._study.num_short))
        return list(accumulate(gaps))

    def _add(self, kind: str, prompt_tokens: int, *, arrival: float) -> None:
        request_id = f"{kind}-{len(self._times)}"
        self._times[request_id] = _Times(arrival, [])
        self._engine.add(request_id, Lengths(prompt_tokens, self._study.output_tokens))

    def _step(self) -> list[RequestOutput]:
        _, outputs = self._engine.step()
        self._step_ends.append(self._engine.now)
        for output in outputs:
            self._times[output.request_id].tokens.append(self._engine.now)
        return outputs

    def _figures(self) -> dict[str, Any]:
        shorts = self._of("short")
        gaps = [late - early for one in shorts for early, late in pairwise(one.tokens)]
        steps = [self._num_steps(one) for one in shorts]
        return {
            "short_ttft_steps_p50": percentile(steps, 50),
            "short_ttft_steps_p99": percentile(steps, 99),
            "short_ttft_p50_ms": _ms(percentile([one.ttft for one in shorts], 50)),
            "short_ttft_p99_ms": _ms(percentile([one.ttft for one in shorts], 99)),
            "short_itl_p99_ms": _ms(percentile(gaps, 99)),
            "short_itl_max_ms": _ms(max(gaps)),
            "long_ttft_p50_ms": _ms(percentile([one.ttft for one in self._of("long")], 50)),
        }

    def _of(self, kind: str) -> list[_Times]:
        return [times for request_id, times in self._times.items() if request_id.startswith(kind)]

    def _num_steps(self, one: _Times) -> int:
        """Steps that ended after its arrival, up to the one that made its first token."""
        return bisect_left(self._step_ends, one.tokens[0]) - bisect_left(self._step_ends, one.arrival) + 1


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
