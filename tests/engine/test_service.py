"""What a policy is told: who waits, and every token of service once. Block size 4 unless said."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings

from engine.config import EngineConfig
from engine.policy import Candidate, FirstComeFirstServed, Service
from engine.request_state import RequestState
from engine.scheduler import Scheduler
from tests.builders import add, answer, make_config, make_request, make_scheduler, run_out, step
from tests.engine.loads import Event, Run, configs, loads


@dataclass
class Recorder(FirstComeFirstServed):
    """What it was told, by request id."""

    waiting: list[Candidate] = field(default_factory=list)
    uncached: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    output: Counter[str] = field(default_factory=Counter)

    def arrived(self, candidate: Candidate) -> None:
        assert candidate not in self.waiting, "it waits already"
        self.waiting.append(candidate)

    def left(self, candidate: Candidate) -> None:
        self.waiting.remove(candidate)

    def served(self, candidate: Candidate, service: Service) -> None:
        assert any(service), "nothing is not told"
        assert candidate not in self.waiting, "who waits is not served"
        self.uncached[candidate.request_id] += service.num_uncached_tokens
        self.cached[candidate.request_id] += service.num_cached_tokens
        self.output[candidate.request_id] += service.num_output_tokens

    def of(self, request_id: str) -> tuple[int, int, int]:
        """Uncached, cached and output tokens."""
        return self.uncached[request_id], self.cached[request_id], self.output[request_id]

    def waits(self) -> list[str]:
        return [candidate.request_id for candidate in self.waiting]


def recorded(**sizes: int | bool) -> tuple[Recorder, Scheduler]:
    recorder = Recorder()
    return recorder, make_scheduler(recorder, **sizes)


def a_state(num_prompt_tokens: int) -> RequestState:
    return RequestState(make_request("a", num_prompt_tokens), make_config(), arrival_order=0, now=0.0)


def test_a_request_waits_from_its_arrival_until_it_is_admitted() -> None:
    recorder, scheduler = recorded(max_num_seqs=1)
    add(scheduler, "a", max_tokens=1)
    add(scheduler, "b")
    assert recorder.waits() == ["a", "b"]
    step(scheduler)
    assert recorder.waits() == ["b"]
    scheduler.abort("b", 0)
    assert recorder.waits() == []


def test_the_preempted_wait_again() -> None:
    recorder, scheduler = recorded(num_blocks=5)
    add(scheduler, "old", 8, max_tokens=6)
    add(scheduler, "young", 7, max_tokens=6)
    step(scheduler)
    assert step(scheduler).preempted == ("young",)
    assert recorder.waits() == ["young"]


def test_who_loses_its_blocks_in_another_s_failed_step_waits_again() -> None:
    recorder, scheduler = recorded(max_num_batched_tokens=2, max_num_seqs=2)
    add(scheduler, "spared", 2, max_tokens=4)
    step(scheduler)
    add(scheduler, "other", 2, max_tokens=4)
    add(scheduler, "third", 9)
    plan = scheduler.schedule(0)
    scheduler.fail(plan, 0)
    assert recorder.waits() == ["third"]


def test_input_counts_when_its_chunk_is_launched_and_output_when_it_comes() -> None:
    recorder, scheduler = recorded(max_num_batched_tokens=6, max_num_seqs=1)
    add(scheduler, "a", 10, max_tokens=2)
    plan = scheduler.schedule(0)
    assert recorder.of("a") == (6, 0, 0)
    scheduler.update(plan, answer(plan), 0)
    plan = scheduler.schedule(0)
    assert recorder.of("a") == (10, 0, 0)
    scheduler.update(plan, answer(plan), 0)
    assert recorder.of("a") == (10, 0, 1)
    step(scheduler)
    assert recorder.of("a") == (10, 0, 2)


def test_what_the_first_look_up_found_is_cached_input() -> None:
    recorder, scheduler = recorded()
    add(scheduler, "a", range(10), max_tokens=1)
    step(scheduler)
    add(scheduler, "b", range(11), max_tokens=1)
    step(scheduler)
    assert recorder.of("b") == (3, 8, 1)


def test_siblings_share_one_input_and_make_an_output_each() -> None:
    recorder, scheduler = recorded()
    add(scheduler, "a", 6, n=3, max_tokens=2)
    run_out(scheduler)
    assert recorder.of("a") == (6, 0, 6)


def test_what_a_preemption_threw_away_counts_once() -> None:
    recorder, scheduler = recorded(num_blocks=5, enable_prefix_caching=False)
    add(scheduler, "old", 8, max_tokens=6)
    add(scheduler, "young", 7, max_tokens=6)
    step(scheduler)
    assert step(scheduler).preempted == ("young",)
    run_out(scheduler)
    assert recorder.of("young") == (7, 0, 6)


def test_hits_of_a_second_admission_are_nobody_s_service() -> None:
    state = a_state(18)
    assert state.launch(8) == Service(num_uncached_tokens=8)
    state.preempt(0.0)
    state.num_computed_tokens = 16
    assert state.launch(2) == Service(num_uncached_tokens=2)


def test_cached_input_counts_as_it_was_told_even_if_it_is_lost_before_the_first_step() -> None:
    state = a_state(10)
    state.num_cached_tokens = state.num_computed_tokens = 8
    state.restart()
    assert state.launch(10) == Service(num_uncached_tokens=2, num_cached_tokens=8)


def test_a_resumed_request_is_served_only_what_is_new() -> None:
    recorder, scheduler = recorded()
    add(scheduler, "a", range(9), output_token_ids=(5, 6, 7), max_tokens=5)
    run_out(scheduler)
    assert recorder.of("a") == (0, 0, 2)


def test_the_input_of_a_request_that_is_aborted_in_flight_counts() -> None:
    """Else tokens are free for who gives up in time."""
    recorder, scheduler = recorded()
    add(scheduler, "a", 5)
    plan = scheduler.schedule(0)
    scheduler.abort("a", 0)
    scheduler.update(plan, answer(plan), 0)
    assert recorder.of("a") == (5, 0, 0)


@settings(max_examples=150)
@given(configs(), loads())
def test_whatever_comes_every_token_is_told_once(config: EngineConfig, events: list[Event]) -> None:
    recorder = Recorder()
    run = Run(config, policy=recorder)
    for event in events:
        run.play([event])
        assert len(recorder.waiting) == run.scheduler.counters().requests_waiting
    run.finish()
    assert recorder.waiting == []
    for request_id, request in run.requests.items():
        told = [outputs for (one, _), outputs in run.outputs.items() if one == request_id]
        uncached, cached, output = recorder.of(request_id)
        assert output == sum(len(row.token_ids) for outputs in told for row in outputs)
        num_input = 0 if request.output_token_ids else len(request.prompt_token_ids)
        assert uncached + cached <= num_input
        if output:
            assert uncached + cached == num_input
            assert cached == (told[0][0].num_cached_tokens if num_input else 0)
