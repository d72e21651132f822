"""`headrace bench pressure` without its command line: run, then every answer against its solo run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.core import EngineCore
from loadtest.bench_setup import BenchParts
from loadtest.pressure.answer import SiblingAnswer
from loadtest.pressure.bounds import missed_bounds
from loadtest.pressure.load import Case
from loadtest.pressure.run import Client, PressureRun, most_steps
from loadtest.pressure.solo import run_solo
from loadtest.pressure.verdict import Tolerance, Verdict, compare, contradictions, is_plainly_greedy
from loadtest.watched_executor import WatchedExecutor

Tell = Callable[[str], None]


class PressureBench:
    """`tolerance` is None where every bit is promised."""

    def __init__(
        self, parts: BenchParts, tolerance: Tolerance | None, tell: Tell = lambda line: None
    ) -> None:
        self._parts = parts
        self._tolerance = tolerance
        self._tell = tell
        self._token_bytes = parts.source.tokenizer().token_bytes
        self._verdicts: Counter[Verdict] = Counter()
        self._num_drawn = 0
        self.losses: list[str] = []
        """One line each, without a word of any prompt."""

    def run(self, cases: Sequence[Case], max_steps: int | None = None) -> dict[str, Any]:
        """The figures. At most `max_steps` are made; None: as many as any load needs."""
        begun = time.monotonic()
        config = self._parts.config
        watched = WatchedExecutor(self._parts.executor)
        core = self._parts.core(config, watched)
        run = PressureRun(
            core,
            watched,
            cases,
            self._token_bytes,
            pool_tokens=(config.num_blocks - 1) * config.block_size,
            max_steps=most_steps(cases) if max_steps is None else max_steps,
        )
        run.run(lambda: self._tell(f"{run.num_ended} of {len(cases)} ended, step {run.num_steps}"))
        pressed_s = time.monotonic() - begun
        self._judge(run)
        figures = self._figures(run, core)
        return {
            "held": not missed_bounds(figures),
            **figures,
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
        case, answer = client.case, client.readers[sibling].answer()
        name = f"{case.request.request_id}, sibling {sibling}"
        self.losses += [f"{name}: {fault}" for fault in self._faults(client, sibling, answer)]
        if not answer.token_ids:
            return
        is_ranked = is_plainly_greedy(case.request.sampling)
        epsilon = None if self._tolerance is None else self._tolerance.epsilon
        solo = run_solo(
            core,
            case,
            sibling,
            self._token_bytes,
            max_tokens=len(answer.token_ids) if answer.is_cut else None,
            tells_ties=epsilon is not None and is_ranked,
        )
        verdict = compare(answer, solo, case.request.sampling, epsilon)
        self._verdicts[verdict] += 1
        self._num_drawn += not is_ranked
        if verdict == "differing":
            self.losses.append(f"{name}: differs from its solo run")

    def _faults(self, client: Client, sibling: int, answer: SiblingAnswer) -> list[str]:
        """What is wrong with the answer by itself."""
        case = client.case
        ends = self._parts.source.config.eos_token_ids
        whole = b"".join(map(self._token_bytes, answer.token_ids)).decode(errors="replace")
        found = client.readers[sibling].faults + contradictions(
            answer, case.request.sampling, ends, case.stop, whole
        )
        if answer.finish == "abort" and not client.has_left(sibling):
            found.append("it was given up, and its client had stayed")
        return found

    def _figures(self, run: PressureRun, core: EngineCore) -> dict[str, Any]:
        counters = core.counters()
        readers = [reader for client in run.clients for reader in client.readers]
        queries = counters.prefix_queries_tokens_total
        return {
            "requests": run.num_ended,
            "answers": len(readers),
            "leaked_blocks": counters.blocks_in_use,
            "differing": self._verdicts["differing"],
            "near_ties": self._verdicts["near_tie"],
            "apart": self._verdicts["apart"],
            "max_apart": 0 if self._tolerance is None else self._tolerance.max_apart(self._num_drawn),
            "drawn": self._num_drawn,
            "same": self._verdicts["same"],
            "running": counters.requests_running,
            "waiting": counters.requests_waiting,
            "errors": len(self.losses) - self._verdicts["differing"],
            "max_preemptions": max((reader.num_preemptions for reader in readers), default=0),
            "preemptions": counters.preemptions_total,
            "aborted": dict(sorted(run.aborted.items())),
            "hit_rate": round(counters.prefix_hits_tokens_total / queries, 4) if queries else None,
            "peak_demand": round(run.peak_demand_tokens / run.pool_tokens, 2),
            "steps": run.num_steps,
        }
