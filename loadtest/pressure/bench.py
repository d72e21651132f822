"""`headrace bench pressure` without its command line: run, then every answer against its solo run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.core import EngineCore
from loadtest.bench_setup import BenchParts
from loadtest.pressure.load import Case
from loadtest.pressure.run import Client, PressureRun, WatchedExecutor
from loadtest.pressure.solo import run_solo
from loadtest.pressure.verdict import Verdict, compare, contradictions, is_plainly_greedy

MAX_PREEMPTIONS = 3
"""Of one answer. Said here again, so that the engine is not judged by its own constant."""

Tell = Callable[[str], None]


class PressureBench:
    """`epsilon`: of near ties; None where every bit is promised."""

    def __init__(self, parts: BenchParts, epsilon: float | None, tell: Tell = lambda line: None) -> None:
        self._parts = parts
        self._epsilon = epsilon
        self._tell = tell
        self._token_bytes = parts.source.tokenizer().token_bytes
        self._verdicts: Counter[Verdict] = Counter()
        self.losses: list[str] = []
        """One line each, without a word of any prompt."""

    def run(self, cases: Sequence[Case]) -> dict[str, Any]:
        begun = time.monotonic()
        config = self._parts.config
        watched = WatchedExecutor(self._parts.executor)
        core = self._parts.core(config, watched)
        pool_tokens = (config.num_blocks - 1) * config.block_size
        run = PressureRun(core, watched, cases, self._token_bytes, pool_tokens=pool_tokens)
        run.run(lambda: self._tell(f"{run.num_ended} of {len(cases)} ended, step {run.num_steps}"))
        pressed_s = time.monotonic() - begun
        self._judge(run)
        return {
            **self._figures(run, core),
            "peak_demand": round(run.peak_demand_tokens / pool_tokens, 2),
            "pressure_s": round(pressed_s, 1),
            "elapsed_s": round(time.monotonic() - begun, 1),
        }

    def _judge(self, run: PressureRun) -> None:
        solo = self._parts.core(
            replace(self._parts.config, enable_prefix_caching=False), self._parts.executor
        )
        self.losses += run.errors
        for number, client in enumerate(run.clients, start=1):
            self._tell(f"{number} of {len(run.clients)} compared with their solo runs")
            for sibling in range(client.case.request.n):
                self._judge_answer(solo, client, sibling)

    def _judge_answer(self, core: EngineCore, client: Client, sibling: int) -> None:
        case, reader = client.case, client.readers[sibling]
        answer, sampling = reader.answer(), case.request.sampling
        name = f"{case.request.request_id}, sibling {sibling}"
        ends = self._parts.source.config.eos_token_ids
        found = [*reader.faults, *contradictions(answer, sampling, ends, has_stop=bool(case.stop))]
        self.losses += [f"{name}: {fault}" for fault in found]
        if answer.token_ids:
            solo = run_solo(
                core,
                case,
                sibling,
                self._token_bytes,
                max_tokens=len(answer.token_ids) if answer.is_cut else None,
                tells_ties=self._epsilon is not None and is_plainly_greedy(sampling),
            )
            verdict = compare(answer, solo, sampling, self._epsilon)
            self._verdicts[verdict] += 1
            if verdict == "differing":
                self.losses.append(f"{name}: differs from its solo run")

    def _figures(self, run: PressureRun, core: EngineCore) -> dict[str, Any]:
        counters = core.counters()
        readers = [reader for client in run.clients for reader in client.readers]
        queries = counters.prefix_queries_tokens_total
        figures = {
            "requests": run.num_ended,
            "answers": len(readers),
            "leaked_blocks": counters.blocks_in_use,
            "differing": self._verdicts["differing"],
            "near_ties": self._verdicts["near_tie"],
            "apart": self._verdicts["apart"],
            "same": self._verdicts["same"],
            "running": counters.requests_running,
            "waiting": counters.requests_waiting,
            "errors": len(self.losses) - self._verdicts["differing"],
            "max_preemptions": max(reader.num_preemptions for reader in readers),
            "preemptions": counters.preemptions_total,
            "aborted": dict(sorted(run.aborted.items())),
            "hit_rate": round(counters.prefix_hits_tokens_total / queries, 4) if queries else None,
            "steps": run.num_steps,
        }
        return {"held": is_held(figures), **figures}


def is_held(figures: dict[str, Any]) -> bool:
    lost = ("leaked_blocks", "differing", "running", "waiting", "errors")
    return not any(figures[key] for key in lost) and figures["max_preemptions"] <= MAX_PREEMPTIONS
