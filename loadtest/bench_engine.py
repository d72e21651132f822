"""The engine alone, no Ray, in this process: a closed loop of requests on one `EngineCore`.

Text is made as a gateway would (`engine/text_stream.py`), so the figures are those of the engine with
its last stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.config import ModelConfig
from engine.core import EngineCore
from loadtest.bench_requests import RequestMaker
from loadtest.bench_run import Answer, BenchRun
from loadtest.long_prompt import LongPromptLoad, run_beside_long_prompts
from loadtest.timed_executor import TimedExecutor


@dataclass(frozen=True)
class BenchLoad:
    """`num_requests` requests, `concurrency` at a time, each of exactly these lengths."""

    num_requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    seed: int = 0


class EngineBench:
    """Runs loads on `core` and measures them."""

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
        maker = RequestMaker(self._model, self._block_size, load.seed)
        shared = maker.tokens(load.shared_prefix_tokens)
        run = self._new_run()
        answers: list[Answer] = []
        num_done = 0
        while num_done < load.num_requests:
            while len(answers) < min(load.num_requests, num_done + load.concurrency):
                request_id = f"bench-{load.concurrency}-{len(answers)}"
                request = maker.request(request_id, load.prompt_tokens, load.output_tokens, shared)
                answers.append(run.add(request))
            num_done += len(run.step())
            on_step(num_done)
        return {**run.figures(answers), "concurrency": load.concurrency}

    def run_beside_long_prompts(
        self, load: LongPromptLoad, on_step: Callable[[int], None] = lambda done: None
    ) -> dict[str, Any]:
        """As `run`; requests are the short ones."""
        maker = RequestMaker(self._model, self._block_size, load.seed)
        return run_beside_long_prompts(self._new_run(), load, maker, on_step)

    def _new_run(self) -> BenchRun:
        return BenchRun(self._core, self._executor, self._token_bytes, self._clock)
