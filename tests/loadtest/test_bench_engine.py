"""The engine's bench on a tape and a clock that only the tape moves: every figure is exact."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading.tape_model import TapeModel
from engine.policy import FirstComeFirstServed
from engine.scheduler import Scheduler
from engine.step import StepPlan
from engine.tape import TapeExecutor, TapeSpec
from loadtest.bench_engine import BenchLoad, EngineBench
from loadtest.bench_requests import RequestMaker
from loadtest.bench_run import BenchRun, EngineFailed
from loadtest.long_prompt import LongPromptLoad
from loadtest.watched_executor import WatchedExecutor
from tests.builders import BLOCK_SIZE, FakeClock, make_config

STEP_S = 0.02


class Tape(TapeExecutor):
    """Plays nothing but end tokens, in steps of 20 ms; keeps its plans; fails when told to."""

    def __init__(self, num_blocks: int, clock: FakeClock) -> None:
        spec = TapeSpec({}, step_ms=STEP_S * 1000)
        super().__init__(spec, num_blocks=num_blocks, block_size=BLOCK_SIZE, sleep=clock.advance)
        self.plans: list[StepPlan] = []
        self.fails_at: int | None = None

    def submit(self, plan: StepPlan) -> Any:
        self.plans.append(plan)
        if len(self.plans) == self.fails_at:
            raise RuntimeError("no")
        return super().submit(plan)


class SlowScheduler(Scheduler):
    """Takes `clock` along, `schedule_s` with each plan."""

    def __init__(self, config: EngineConfig, clock: FakeClock, schedule_s: float) -> None:
        super().__init__(config, FirstComeFirstServed(), eos_token_ids=[258])
        self._clock = clock
        self._schedule_s = schedule_s

    def schedule(self, now: float) -> StepPlan:
        self._clock.advance(self._schedule_s)
        return super().schedule(now)


class Rig:
    """`text_s`: what making the text of one token takes; `least_s`: what a step must take at least;
    `schedule_s`: what the scheduler takes for a plan."""

    def __init__(
        self, *, text_s: float = 0.0, least_s: float | None = None, schedule_s: float = 0.0, **sizes: Any
    ) -> None:
        self.clock = FakeClock()
        self.text_s = text_s
        config = make_config(**sizes)
        self.tape = Tape(config.num_blocks, self.clock)
        watched = WatchedExecutor(self.tape)
        self.core = EngineCore(SlowScheduler(config, self.clock, schedule_s), watched, self.clock)
        vocab_size = TapeModel(TapeSpec({})).config.vocab_size
        least_s_of = None if least_s is None else lambda plan: least_s
        self.bench = EngineBench(
            lambda: BenchRun(self.core, watched, self._bytes, self.clock, least_s_of),
            lambda seed: RequestMaker(vocab_size, b"root", BLOCK_SIZE, seed),
        )

    def _bytes(self, token_id: int) -> bytes:
        self.clock.advance(self.text_s)
        return b""

    def run(self, **load: Any) -> dict[str, Any]:
        defaults = {"num_requests": 4, "concurrency": 2, "prompt_tokens": 8, "output_tokens": 3}
        return self.bench.run(BenchLoad(**{**defaults, **load}))

    def run_beside(self, **load: Any) -> dict[str, Any]:
        defaults = {
            "long_prompt_tokens": 64,
            "num_requests": 6,
            "concurrency": 2,
            "prompt_tokens": 2,
            "output_tokens": 3,
            "max_num_batched_tokens": 8,
        }
        return self.bench.run_beside_long_prompts(LongPromptLoad(**{**defaults, **load}))

    def prompts(self) -> list[tuple[int, ...]]:
        """Of all requests, as the model saw them first."""
        return [
            request.token_ids
            for plan in self.tape.plans
            for request in plan.scheduled
            if request.num_computed_tokens == 0
        ]


def test_every_figure_of_a_small_load() -> None:
    """Two pairs, one after the other: a step for the prompts, two for the rest, 20 ms each.

    A pair's blocks after its steps: 8 tokens in 8 slots, 9 in 12, then none: 3 of 20 are empty.
    """
    figures = Rig().run()
    assert figures.pop("peak_rss_mib") > 10
    assert figures == {
        "requests": 4,
        "concurrency": 2,
        "output_tokens_per_s": 100.0,  # 12 in 0.12 s
        "ttft_p50_ms": 20.0,
        "ttft_p99_ms": 20.0,
        "itl_p50_ms": 20.0,
        "itl_p99_ms": 20.0,
        "kv_waste": 0.15,
        "hit_rate": 0.0,
        "preemptions": 0,
        "limit_share": None,
        "limit_share_reason": "a tape moves and computes nothing",
        "overhead_share": 0.0,
        "elapsed_s": 0.12,
    }


def test_what_a_step_spends_outside_the_executor_is_overhead_and_what_comes_after_it_is_not() -> None:
    """Four steps of 5 ms for the plan and 20 ms for the model; 5 ms for each of four tokens' text."""
    figures = Rig(schedule_s=0.005, text_s=0.005).run(num_requests=1, concurrency=1, output_tokens=4)
    assert figures["overhead_share"] == 0.2
    assert figures["elapsed_s"] == 0.12


def test_overhead_is_each_run_s_own() -> None:
    rig = Rig(schedule_s=0.005)
    assert [rig.run(seed=seed)["overhead_share"] for seed in (1, 2)] == [0.2, 0.2]


def test_a_plan_is_told_before_its_step_is_computed() -> None:
    rig, told = Rig(), []
    watched = WatchedExecutor(rig.tape)
    watched.on_plan = lambda plan: told.append((plan.step, len(rig.tape.plans), rig.clock.now))
    watched.submit(StepPlan(1, ()))
    assert told == [(1, 0, 0.0)]
    assert len(rig.tape.plans) == 1


def test_a_request_that_waits_for_a_slot_of_the_engine_has_a_later_first_token() -> None:
    figures = Rig(max_num_seqs=1).run(num_requests=2, concurrency=2)
    assert (figures["ttft_p50_ms"], figures["ttft_p99_ms"]) == (20.0, 80.0)


def test_one_output_token_has_no_gap() -> None:
    figures = Rig().run(output_tokens=1)
    assert (figures["itl_p50_ms"], figures["itl_p99_ms"]) == (None, None)


def test_a_run_measures_itself_only() -> None:
    rig = Rig()
    first = rig.run()
    second, third = rig.run(concurrency=4), rig.run(concurrency=3)
    assert second["elapsed_s"] == 0.06
    assert second["overhead_share"] == first["overhead_share"] == 0.0
    assert (
        second["hit_rate"] == third["hit_rate"] == 0.5
    )  # the same prompts again: one of two blocks each, the last is computed


def test_prompts_follow_from_the_seed_have_the_asked_length_and_differ() -> None:
    rigs = [Rig(enable_prefix_caching=False) for _ in range(3)]
    for rig, seed in zip(rigs, (1, 1, 2), strict=True):
        rig.run(seed=seed)
    first, again, other = (rig.prompts() for rig in rigs)
    assert first == again
    assert len({*first, *other}) == 8
    assert {len(prompt) for prompt in first} == {8}
    assert all(0 <= token_id < 259 for prompt in first for token_id in prompt)


def test_a_shared_prefix_is_shared_and_its_hits_are_counted() -> None:
    rig = Rig()
    figures = rig.run(shared_prefix_tokens=4)
    assert figures["hit_rate"] == 0.25  # the second pair finds 4 of 8 tokens each
    first, second = rig.prompts()
    assert first[:4] == second[:4]
    assert first[4:] != second[4:]


def test_concurrency_is_kept_and_progress_is_told() -> None:
    rig, told = Rig(), []
    load = BenchLoad(num_requests=5, concurrency=2, prompt_tokens=4, output_tokens=2)
    rig.bench.run(load, told.append)
    assert [len(plan.scheduled) for plan in rig.tape.plans] == [2, 2, 2, 2, 1, 1]
    assert told == [0, 2, 2, 4, 4, 5]


def test_preemptions_are_counted() -> None:
    """Two requests of 8 + 8 tokens need 8 blocks; there are 6."""
    figures = Rig(num_blocks=7).run(num_requests=2, output_tokens=8)
    assert figures["preemptions"] == 1
    assert figures["requests"] == 2


def test_an_engine_that_fails_is_no_measurement() -> None:
    rig = Rig()
    rig.tape.fails_at = 2
    with pytest.raises(EngineFailed, match="a request ended with engine_error"):
        rig.run()


def test_limit_share_is_the_least_that_steps_must_take_of_what_they_took() -> None:
    """Six steps of 20 ms that must take 5 ms each; text does not count, it is made after the step."""
    figures = Rig(least_s=0.005, text_s=0.001).run()
    assert figures["limit_share"] == 0.25
    assert "limit_share_reason" not in figures


def test_limit_share_is_each_run_s_own() -> None:
    rig = Rig(least_s=0.005)
    assert [rig.run(seed=seed)["limit_share"] for seed in (1, 2)] == [0.25, 0.25]


def test_a_step_that_fails_resets_the_executor_below(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, resets = Rig(), []
    monkeypatch.setattr(rig.tape, "reset", lambda: resets.append(1))
    rig.tape.fails_at = 1
    with pytest.raises(EngineFailed):
        rig.run()
    assert resets == [1]


BUDGET = {"max_num_batched_tokens": 8, "max_num_seqs": 3}


def test_a_short_prompt_beside_a_long_one_has_its_first_token_within_two_steps() -> None:
    figures = Rig(**BUDGET).run_beside()
    assert figures["requests"] >= 6
    assert 1 <= figures["short_ttft_steps_p50"] <= figures["short_ttft_steps_p99"]
    assert figures["short_ttft_steps_p99"] <= figures["short_ttft_steps_max"] <= 2
    assert figures["short_ttft_p99_ms"] == figures["ttft_p99_ms"] == 20 * figures["short_ttft_steps_p99"]


def test_short_ones_go_on_to_come_until_a_long_prompt_was_computed_whole() -> None:
    """64 tokens in steps of at most 8, and often of 4: what is left for it beside a short one."""
    rig = Rig(**BUDGET)
    figures = rig.run_beside(num_requests=1, seed=1)
    assert 8 * 20 <= figures["long_ttft_ms"] <= 16 * 20
    assert figures["requests"] > 1
    computed = [r for plan in rig.tape.plans for r in plan.scheduled if r.request_id == "long-0"]
    assert sum(row.num_scheduled_tokens for row in computed[:-1]) >= 63


def test_a_long_prompt_is_there_beside_every_short_one() -> None:
    rig = Rig(**BUDGET)
    rig.run_beside(num_requests=40)
    beside = [{row.request_id[:4] for row in plan.scheduled} for plan in rig.tape.plans]
    assert all("long" in names for names in beside[:-3])  # the last short ones run out
    longs = {row.request_id for plan in rig.tape.plans for row in plan.scheduled if row.request_id[0] == "l"}
    assert len(longs) > 1


def test_a_scheduler_that_lets_long_prompts_fill_the_budget_would_be_seen() -> None:
    """The whole budget to who came first: a short one waits until the long prompt is done."""
    rig = Rig(max_num_batched_tokens=8, max_num_seqs=1)
    figures = rig.run_beside()
    assert figures["short_ttft_steps_max"] > 8


def test_short_ones_bring_at_most_a_quarter_of_the_budget() -> None:
    assert LongPromptLoad(1000, 1, 1, 128, 1, 256).arrivals_per_step == 0.25  # never more
    assert LongPromptLoad(1000, 1, 1, 100, 1, 50).arrivals_per_step == 0.125


def test_a_run_beside_long_prompts_leaves_nothing_behind() -> None:
    rig = Rig(**BUDGET)
    rig.run_beside()
    assert rig.run()["requests"] == 4
    assert not rig.core.has_work()
