"""How requests end, what is told about them on the way, and how they are resumed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from engine.prefix_stats import PrefixStats
from engine.request import SamplingParams, Timing
from tests.builders import (
    EOS,
    add,
    answer,
    make_request,
    make_scheduler,
    one_output,
    step,
    tokens_of,
)


def test_the_end_token_ends_it_and_is_told() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    output = one_output(scheduler, EOS)
    assert (output.token_ids, output.finish_reason) == ((EOS,), "stop")


def test_ignore_eos_goes_on_to_the_limit() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=2, ignore_eos=True)
    assert [one_output(scheduler, EOS).finish_reason for _ in range(2)] == [None, "length"]


def test_an_end_token_as_the_last_one_allowed_is_a_stop() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=1)
    assert one_output(scheduler, EOS).finish_reason == "stop"


def test_the_context_ends_it_before_max_tokens() -> None:
    scheduler = make_scheduler(max_model_len=7)
    add(scheduler, "a", 5, max_tokens=100)
    assert [one_output(scheduler).finish_reason for _ in range(2)] == [None, "length"]


def test_cached_tokens_are_told_once_and_timing_at_the_end() -> None:
    scheduler = make_scheduler()
    add(scheduler, "first", range(9), max_tokens=1)
    one_output(scheduler)
    add(scheduler, "second", range(9), max_tokens=3)
    outputs = [one_output(scheduler) for _ in range(3)]
    assert [output.num_cached_tokens for output in outputs] == [8, None, None]
    assert [output.timing is None for output in outputs] == [True, True, False]


def test_hits_of_a_recomputation_are_not_hits() -> None:
    scheduler = make_scheduler(num_blocks=7)
    add(scheduler, "old", 12, max_tokens=2)
    add(scheduler, "young", range(12), max_tokens=2)
    step(scheduler)
    plan = step(scheduler)
    assert plan.preempted == ("young",)
    plan = step(scheduler)
    assert plan.scheduled[0].num_computed_tokens > 0
    counters = scheduler.counters()
    assert (counters.prefix_queries_tokens_total, counters.prefix_hits_tokens_total) == (24, 0)


def test_where_the_time_went() -> None:
    scheduler = make_scheduler(num_blocks=7, enable_prefix_caching=False, max_num_batched_tokens=32)
    add(scheduler, "old", 12, max_tokens=3, now=1.0)
    add(scheduler, "young", 12, max_tokens=2, now=1.5)
    timings: dict[str, Timing | None] = {}
    for begun in (2.0, 4.0, 8.0, 16.0):
        plan = scheduler.schedule(begun)
        for output in scheduler.update(plan, answer(plan), begun + 1.0):
            timings[output.request_id] = output.timing
    # young: first token at 3, preempted at 4, back at 16, done at 17
    assert timings == {"old": Timing(1.0, 1.0, 6.0, 0.0, 0), "young": Timing(0.5, 1.0, 14.0, 12.0, 1, 12)}


def test_kv_waste_counts_slots_without_a_token_and_shared_blocks_once() -> None:
    scheduler = make_scheduler()
    assert scheduler.counters().kv_waste_ratio == 0.0
    add(scheduler, "first", range(9))
    step(scheduler)
    assert scheduler.counters().kv_waste_ratio == 3 / 12
    add(scheduler, "second", range(10))
    step(scheduler)  # 10 computed tokens each, in 2 shared blocks and one of their own
    counters = scheduler.counters()
    assert counters.kv_waste_ratio == 4 / 16
    assert (counters.kv_empty_slots_total, counters.kv_owned_slots_total) == (3 + 4, 12 + 16)


def test_counters_tell_the_state() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32, max_num_seqs=1)
    add(scheduler, "a", 40)
    add(scheduler, "b", 10)
    step(scheduler)
    counters = scheduler.counters()
    assert (counters.requests_running, counters.requests_waiting, counters.queued_tokens) == (1, 1, 18)
    assert (counters.blocks_total, counters.blocks_in_use, counters.blocks_evictable) == (100, 8, 0)


def test_a_resumed_request_goes_on_where_it_was_and_repeats_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 5, max_tokens=4, output_token_ids=(50, 51))
    (only,) = step(scheduler).scheduled
    assert (only.token_ids[5:], only.output_index) == ((50, 51), 2)
    output = one_output(scheduler)
    assert (output.first_output_index, output.finish_reason) == (3, "length")
    assert scheduler.counters().prefix_queries_tokens_total == 0


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 6, "temperature": 0.0, **fields})


def outputs_of(sampling: SamplingParams, *tokens: int) -> tuple[list[int], str | None]:
    """What a request makes whose executor samples `tokens`, and how it ends."""
    scheduler = make_scheduler()
    scheduler.add(replace(make_request("a"), sampling=sampling), 0)
    outputs = [one_output(scheduler, token_id) for token_id in tokens if scheduler.has_work()]
    return tokens_of(outputs), outputs[-1].finish_reason


def test_a_stop_token_id_ends_it_like_an_end_token_even_where_those_are_ignored() -> None:
    for ignore_eos in (False, True):
        sampling = params(stop_token_ids=(30, 31), ignore_eos=ignore_eos)
        assert outputs_of(sampling, 7, 31, 7) == ([7, 31], "stop")


def test_no_end_counts_before_min_tokens_have_come() -> None:
    sampling = params(min_tokens=2, stop_token_ids=(30,))
    assert outputs_of(sampling, EOS, 30, EOS, 7) == ([EOS, 30, EOS], "stop")


def test_min_tokens_masks_just_the_ends_and_just_as_long() -> None:
    scheduler = make_scheduler()
    scheduler.add(replace(make_request("a"), sampling=params(min_tokens=2, stop_token_ids=(30,))), 0)
    masks = [step(scheduler).scheduled[0].masked_token_ids for _ in range(3)]
    assert masks == [(EOS, 30), (EOS, 30), ()]


def test_a_prefill_chunk_masks_nothing_and_brings_no_history() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    sampling = params(min_tokens=2, presence_penalty=1.0)
    scheduler.add(replace(make_request("a", 40), sampling=sampling), 0)
    first, second = step(scheduler).scheduled[0], step(scheduler).scheduled[0]
    assert (first.masked_token_ids, first.history) == ((), ())
    assert (second.masked_token_ids, len(second.history)) == ((EOS,), 40)


def test_history_is_prompt_and_output_where_penalties_read_it() -> None:
    scheduler = make_scheduler()
    scheduler.add(replace(make_request("a", (1, 2, 3)), sampling=params(frequency_penalty=0.5)), 0)
    assert [step(scheduler, token_id=9).scheduled[0].history for _ in range(3)] == [
        (1, 2, 3),
        (1, 2, 3, 9),
        (1, 2, 3, 9, 9),
    ]


def test_what_the_lookup_found_is_told_once_with_the_first_token() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", (*range(10), 90, 91, 92), max_tokens=1)
    step(scheduler)
    add(scheduler, "b", (*range(10), 80, 81, 82), max_tokens=2)
    outputs = [one_output(scheduler), one_output(scheduler)]
    found = PrefixStats(hit_tokens=8, diverged_tokens=4, below_block_tokens=1, diverged_at=10)
    assert [output.lookup for output in outputs] == [found, None]
    assert outputs[0].num_cached_tokens == found.hit_tokens


def test_or_with_an_end_that_comes_before_it() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16, max_num_seqs=1)
    add(scheduler, "a", range(40))
    step(scheduler)
    (output,) = scheduler.abort("a", 0)
    assert output.lookup == PrefixStats(cold_tokens=36, below_block_tokens=4)


def test_one_that_ends_before_it_is_admitted_looked_nothing_up() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    (output,) = scheduler.abort("a", 0)
    assert output.lookup is None


def test_a_resumed_one_was_looked_up_where_it_began() -> None:
    scheduler = make_scheduler()
    for request_id, outputs in (("first", ()), ("resumed", (7, 7))):
        add(scheduler, request_id, range(9), output_token_ids=outputs, max_tokens=len(outputs) + 1)
        output = one_output(scheduler)
    assert (output.num_cached_tokens, output.lookup) == (8, None)


def test_one_that_was_preempted_before_its_first_token_tells_its_first_lookup() -> None:
    """The old one grows into what the young one's prompt holds."""
    scheduler = make_scheduler(num_blocks=9, max_num_batched_tokens=8, max_num_seqs=2)
    add(scheduler, "old", range(15), max_tokens=8)
    add(scheduler, "young", range(100, 116), max_tokens=1)
    told = {}
    was_preempted = False
    for _ in range(20):
        plan = scheduler.schedule(0)
        was_preempted |= plan.preempted == ("young",)
        for output in scheduler.update(plan, answer(plan), 0):
            told.setdefault(output.request_id, output.lookup)
    assert was_preempted
    assert told["young"] == PrefixStats(cold_tokens=12, below_block_tokens=4)
