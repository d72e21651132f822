"""The engine alone, no Ray, in this process: a closed loop of requests on one `EngineCore`.

Text is made as a gateway would (`engine/text_stream.py`), so the figures are those of the engine with
its last stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest.bench_requests import RequestMaker
from loadtest.bench_run import BenchRun, MeasuredRequest
from loadtest.long_prompt import LongPromptLoad, run_beside_long_prompts


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
    """Runs loads on one engine, each measured by a run and made by a maker (from its seed) of its own."""

    def __init__(self, new_run: Callable[[], BenchRun], new_maker: Callable[[int], RequestMaker]) -> None:
        self._new_run = new_run
        self._new_maker = new_maker

    def run(self, load: BenchLoad, on_step: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
        """The figures of the run. `on_step(done)` hears how many requests have ended.

        Raises `EngineFailed`.
        """
        maker = self._new_maker(load.seed)
        shared = maker.tokens(load.shared_prefix_tokens)
        run = self._new_run()
        begun: list[MeasuredRequest] = []
        num_done = 0
        while num_done < load.num_requests:
            while len(begun) < min(load.num_requests, num_done + load.concurrency):
                request_id = f"bench-{load.concurrency}-{len(begun)}"
                request = maker.request(request_id, load.prompt_tokens, load.output_tokens, shared)
                begun.append(run.add(request))
            num_done += len(run.step())
            on_step(num_done)
        return {**run.figures(begun), "concurrency": load.concurrency}

    def run_beside_long_prompts(
        self, load: LongPromptLoad, on_step: Callable[[int], None] = lambda done: None
    ) -> dict[str, Any]:
        """As `run`; requests are the short ones."""
        return run_beside_long_prompts(self._new_run(), load, self._new_maker(load.seed), on_step)
