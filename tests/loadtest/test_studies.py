"""The studies: their direction, their bounds, and that they compare the same load."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from loadtest.studies.batching import BatchingStudy
from loadtest.studies.chunking import ChunkingStudy
from loadtest.studies.lengths import CONTEXT, Lengths, draw_lengths
from loadtest.studies.paging import PagingStudy
from loadtest.studies.virtual_engine import StepTime, VirtualEngine, everyone
from tests.builders import make_config

STEP = StepTime(base_s=1.0, token_s=0.5)


def test_drawn_lengths_have_the_means_of_the_trace_and_fit_the_context() -> None:
    """Of the 17,754 rows: 878 and 224 tokens."""
    drawn = draw_lengths(Random(1), 20_000)
    prompts, outputs = zip(*drawn, strict=True)
    assert sum(prompts) / len(drawn) == pytest.approx(878, rel=0.05)
    assert sum(outputs) / len(drawn) == pytest.approx(224, rel=0.05)
    assert min(prompts) >= 2
    assert min(outputs) >= 1
    assert max(map(sum, drawn)) <= CONTEXT


def test_lengths_follow_from_the_seed() -> None:
    assert draw_lengths(Random(1), 9) == draw_lengths(Random(1), 9) != draw_lengths(Random(2), 9)


def test_virtual_time_is_the_cost_of_the_steps() -> None:
    """A prompt of 4 tokens, then two decodes."""
    engine = VirtualEngine(make_config(), STEP)
    engine.add("a", Lengths(4, 3))
    times = []
    while engine.has_work():
        engine.step()
        times.append(engine.now)
    assert times == [3.0, 4.5, 6.0]


def test_a_run_makes_every_token_that_was_asked_for() -> None:
    load = [Lengths(3, 5), Lengths(9, 1), Lengths(1, 8)]
    steps = list(VirtualEngine(make_config(), STEP).run(load, everyone))
    made = [output.request_id for seen in steps for output in seen.outputs]
    assert [made.count(str(number)) for number in range(3)] == [5, 1, 8]


def test_an_admission_keeps_requests_back() -> None:
    """Two at a time, though there is room for all."""
    steps = list(VirtualEngine(make_config(), STEP).run([Lengths(2, 2)] * 5, lambda num_live: 2 - num_live))
    assert [len(seen.plan.scheduled) for seen in steps] == [2, 2, 2, 2, 1, 1]
    assert [seen.num_queued for seen in steps] == [3, 3, 1, 1, 0, 0]
    assert [seen.is_saturated for seen in steps] == [True, True, True, True, False, False]


@pytest.fixture(scope="module")
def paging() -> dict[str, Any]:
    return PagingStudy(num_contexts=6, num_requests=90).run()


def test_paging_wastes_next_to_nothing_where_whole_contexts_waste_most(paging: dict[str, Any]) -> None:
    naive, paged = paging["rows"]
    assert 0.6 < naive["waste"] < 0.8
    assert paged["waste"] < 0.01


def test_paging_holds_three_times_the_users(paging: dict[str, Any]) -> None:
    naive, paged = paging["rows"]
    assert naive["users_max"] == 6
    assert 5.9 < naive["users_mean"] <= 6
    assert 3 < paging["users_gain"] < 4.5
    assert paged["output_tokens_per_step"] > 3 * naive["output_tokens_per_step"]
    assert paging["held"]


def test_the_waste_of_naive_allocation_is_what_its_lengths_say(paging: dict[str, Any]) -> None:
    """While it runs, a request holds its prompt and on average half of its output."""
    load = draw_lengths(Random(0), 90)
    weights = sum(one.output_tokens for one in load)
    held = sum(one.output_tokens * (one.prompt_tokens + one.output_tokens / 2) for one in load) / weights
    naive, _ = paging["rows"]
    assert naive["waste"] == pytest.approx(1 - held / CONTEXT, abs=0.03)


def test_continuous_batching_keeps_its_slots_at_work() -> None:
    figures = BatchingStudy(num_slots=16, num_requests=120).run()
    static, continuous = figures["rows"]
    assert static["slot_utilisation"] < 0.45
    assert continuous["slot_utilisation"] > 0.98
    assert continuous["output_tokens_per_step"] > 2 * static["output_tokens_per_step"]
    assert figures["throughput_gain"] > 1.4
    assert figures["held"]


def test_chunked_prefill_keeps_a_short_request_from_waiting_for_a_long_one() -> None:
    figures = ChunkingStudy(num_short=60).run()
    whole, chunked = figures["rows"]
    assert chunked["short_ttft_steps_p99"] <= 3
    assert whole["short_ttft_p99_ms"] > 5 * chunked["short_ttft_p99_ms"]
    assert whole["short_itl_max_ms"] > 2000  # the whole prompt is one step of 8 ms + 32,768 × 64 µs
    assert chunked["short_itl_max_ms"] == pytest.approx(8 + 2048 * 0.064, abs=0.1)
    assert whole["long_ttft_p50_ms"] < chunked["long_ttft_p50_ms"] < 1.2 * whole["long_ttft_p50_ms"]
    assert figures["held"]


def test_a_wait_is_counted_from_the_step_under_way() -> None:
    """One short request, while steps of 1,032 ms follow each other: the rest of one, and its own."""
    figures = ChunkingStudy(num_short=1, step_time=StepTime(0.008, 0.0005)).run()
    _, chunked = figures["rows"]
    assert chunked["short_ttft_steps_p50"] == 2
    assert 1032 < chunked["short_ttft_p50_ms"] < 2 * 1032


@pytest.mark.parametrize(
    "study",
    [
        PagingStudy(num_contexts=2, num_requests=20),
        BatchingStudy(num_slots=8, num_requests=20),
        ChunkingStudy(num_short=20),
    ],
    ids=lambda study: type(study).__name__,
)
def test_a_study_gives_the_same_figures_again(study: PagingStudy | BatchingStudy | ChunkingStudy) -> None:
    assert study.run() == study.run()
