"""The scheduler's rules, each in the smallest case that shows it. Block size 4 unless said."""

from __future__ import annotations

import pytest

from engine.block_pool import IntegrityError
from engine.request import RequestOutput, Timing
from engine.scheduler import RequestRefused, Scheduler
from tests.builders import EOS, answer, make_request, make_scheduler, run_out, scheduled, step


def add(scheduler: Scheduler, *arguments: object, now: float = 0.0, **fields: object) -> None:
    scheduler.add(make_request(*arguments, **fields), now)  # type: ignore[arg-type]


def finish(scheduler: Scheduler, token_id: int = 7) -> RequestOutput:
    """One step that brings exactly one output."""
    plan = scheduler.schedule(0)
    (output,) = scheduler.update(plan, answer(plan, token_id), 0)
    return output


# --- the token budget ----------------------------------------------------------------------


def test_one_request_is_computed_in_chunks_then_token_by_token() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "a", 70, max_tokens=3)
    steps = [step(scheduler).scheduled[0] for _ in range(5)]
    assert [s.num_scheduled_tokens for s in steps] == [32, 32, 6, 1, 1]
    assert [s.num_computed_tokens for s in steps] == [0, 32, 64, 70, 71]
    assert [s.output_index for s in steps] == [None, None, 0, 1, 2]
    assert [len(s.block_table) for s in steps] == [8, 16, 18, 18, 18]
    assert not scheduler.has_work()


def test_decodes_go_first_and_prefills_get_the_rest() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    for request_id in ("a", "b", "c"):
        add(scheduler, request_id, 5, max_tokens=9)
    step(scheduler)
    add(scheduler, "long", 99)
    assert scheduled(step(scheduler)) == {"a": 1, "b": 1, "c": 1, "long": 29}


def test_prefills_go_in_order_of_arrival() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    for request_id in ("a", "b", "c"):
        add(scheduler, request_id, 12)
    assert scheduled(step(scheduler)) == {"a": 12, "b": 12, "c": 8}
    assert scheduled(step(scheduler)) == {"a": 1, "b": 1, "c": 4}


def test_a_higher_class_goes_before_an_earlier_lower_one() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "batch", 20, priority=1)
    add(scheduler, "interactive", 16)
    assert list(scheduled(step(scheduler))) == ["interactive", "batch"]


def test_a_prompt_of_half_the_budget_is_short_one_token_more_is_long() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "a", 17)
    add(scheduler, "b", 16)
    assert scheduled(step(scheduler)) == {"a": 16, "b": 16}


def test_what_is_left_of_a_long_prefill_is_short() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "batch", 48, priority=1)
    assert scheduled(step(scheduler)) == {"batch": 32}
    add(scheduler, "interactive", 99)
    assert scheduled(step(scheduler)) == {"interactive": 16, "batch": 16}


def test_decodes_of_a_higher_class_go_before_those_that_ran_earlier() -> None:
    scheduler = make_scheduler()
    for request_id, priority in (("batch", 1), ("interactive", 0)):
        add(scheduler, request_id, 5, priority=priority)
        step(scheduler)
    assert list(scheduled(step(scheduler))) == ["interactive", "batch"]


def test_long_prefills_share_half_while_a_short_one_waits() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "long 1", 24)
    add(scheduler, "long 2", 99)
    assert scheduled(step(scheduler)) == {"long 1": 24, "long 2": 8}
    add(scheduler, "short", 8)
    assert scheduled(step(scheduler)) == {"long 1": 1, "short": 8, "long 2": 23}


def test_short_prefills_that_came_first_leave_a_long_one_less_than_its_half() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "short 1", 12)
    add(scheduler, "short 2", 14)
    add(scheduler, "long", 50)
    assert scheduled(step(scheduler)) == {"short 1": 12, "short 2": 14, "long": 6}


def test_a_short_prompt_beside_many_long_ones_gets_its_first_token_in_the_next_step() -> None:
    scheduler = make_scheduler(num_blocks=2000, max_num_batched_tokens=32)
    for number in range(20):
        add(scheduler, f"long {number}", 300)
    step(scheduler)
    add(scheduler, "short", 15)
    plan = step(scheduler)
    assert scheduled(plan) == {"long 0": 17, "short": 15}
    assert plan.scheduled[1].output_index == 0


def test_a_long_prompt_that_is_mostly_cached_is_short() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "first", range(60), max_tokens=1)
    run_out(scheduler)
    for request_id, prompt in (("long", range(500, 599)), ("mostly cached", range(68))):
        add(scheduler, request_id, prompt)
    assert scheduled(step(scheduler)) == {"long": 24, "mostly cached": 8}


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for request_id in ("a", "b", "c"):
        add(scheduler, request_id, 5, max_tokens=2)
    assert list(scheduled(step(scheduler))) == ["a", "b"]
    assert list(scheduled(step(scheduler))) == ["a", "b"]
    assert list(scheduled(step(scheduler))) == ["c"]


# --- what is refused at once ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "fields", "code", "message"),
    [
        ((), {}, "empty_prompt", "prompt must hold at least one token"),
        ((1, -1), {}, "invalid_value", "prompt token ids must be between 0 and 2147483647"),
        ((2**31,), {}, "invalid_value", "prompt token ids must be between 0 and 2147483647"),
        (5, {"max_tokens": 0}, "invalid_value", "max_tokens must be at least 1, not 0"),
        (5, {"output_token_ids": (1, 2, 3, 4)}, "invalid_value", "max_tokens must be at least 5, not 4"),
        (7, {"block_size": 2}, "invalid_value", "block_hashes must be at most 1"),
        (60, {}, "context_length_exceeded", "prompt of 60 tokens leaves no room for an answer"),
        (41, {}, "limit_never_satisfiable", "need 45 slots: the KV pool holds 40"),
        (30, {"max_tokens": 11}, "limit_never_satisfiable", "need 41 slots: the KV pool holds 40"),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_numbers(prompt, fields, code, message) -> None:
    scheduler = make_scheduler(num_blocks=11, max_model_len=60)
    with pytest.raises(RequestRefused, match=message) as refusal:
        add(scheduler, "a", prompt, **fields)
    assert refusal.value.code == code
    assert not scheduler.has_work()


def test_what_fits_exactly_is_served() -> None:
    scheduler = make_scheduler(num_blocks=11, max_model_len=40, watermark=0.5)
    add(scheduler, "a", 39, max_tokens=1000)
    assert finish(scheduler).finish_reason == "length"


def test_a_live_id_is_refused_and_a_finished_one_is_free_again() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=1)
    with pytest.raises(RequestRefused, match="request a is already here"):
        add(scheduler, "a")
    step(scheduler)
    add(scheduler, "a")


def test_a_capacity_miss_hurts_nobody_behind_it() -> None:
    """Case 4: context 4096, pool 1024 tokens."""
    scheduler = make_scheduler(num_blocks=65, max_model_len=4096, block_size=16, max_num_batched_tokens=256)
    with pytest.raises(RequestRefused, match="need 1504 slots: the KV pool holds 1024"):
        add(scheduler, "too long", 1500, block_size=16)
    add(scheduler, "short", 10, block_size=16)
    assert step(scheduler).scheduled[0].output_index == 0
    with pytest.raises(RequestRefused, match="need 1500 slots: the KV pool holds 1024"):
        add(scheduler, "too long an answer", 1000, max_tokens=500, block_size=16)


# --- admission -----------------------------------------------------------------------------


def test_admission_counts_the_whole_prompt_not_the_next_chunk() -> None:
    """Case 3: pool 20 blocks, a decoder that holds 10, a prompt of 14, chunks of 2, no cache."""
    scheduler = make_scheduler(
        num_blocks=21, max_num_batched_tokens=8, max_num_seqs=8, enable_prefix_caching=False
    )
    add(scheduler, "decoder", 38, max_tokens=10)
    for _ in range(5):
        step(scheduler)
    assert scheduler.counters().blocks_in_use == 10
    add(scheduler, "prompt", 56, max_tokens=8)
    plans = run_out(scheduler)
    assert [list(scheduled(plan)) for plan in plans] == [["decoder"]] * 9 + [["prompt"]] * 14
    assert scheduler.counters().preemptions_total == 0


def test_blocks_promised_to_an_admitted_prompt_are_not_promised_again() -> None:
    scheduler = make_scheduler(num_blocks=21, max_num_batched_tokens=8, max_num_seqs=8)
    add(scheduler, "a", 48)
    assert scheduled(step(scheduler)) == {"a": 8}
    add(scheduler, "b", 36)
    assert scheduled(step(scheduler)) == {"a": 8}
    assert scheduler.counters().requests_waiting == 1


def test_the_watermark_keeps_room_for_those_that_run() -> None:
    scheduler = make_scheduler(num_blocks=11, watermark=0.2)
    add(scheduler, "a", 8)
    add(scheduler, "needs 7 of 8", 28)
    assert list(scheduled(step(scheduler))) == ["a"]


def test_the_watermark_does_not_stop_a_request_that_is_alone() -> None:
    scheduler = make_scheduler(num_blocks=11, watermark=0.2)
    add(scheduler, "a", 36)
    assert list(scheduled(step(scheduler))) == ["a"]


def test_nobody_overtakes_the_first_that_has_no_room() -> None:
    scheduler = make_scheduler(num_blocks=11)
    add(scheduler, "a", 20, max_tokens=2)
    add(scheduler, "big", 32)
    add(scheduler, "small", 4)
    assert list(scheduled(step(scheduler))) == ["a"]
    assert list(scheduled(step(scheduler))) == ["a"]
    assert list(scheduled(step(scheduler))) == ["big", "small"]


def test_unused_cached_blocks_are_room_too_but_not_twice() -> None:
    scheduler = make_scheduler(num_blocks=11)
    add(scheduler, "first", range(17), max_tokens=1)
    step(scheduler)
    assert scheduler.counters().blocks_evictable == 4
    add(scheduler, "again", range(17))
    add(scheduler, "needs 5", 20)
    add(scheduler, "needs 1", 4)
    assert list(scheduled(step(scheduler))) == ["again", "needs 5"]


# --- preemption ----------------------------------------------------------------------------


def test_the_preempted_come_back_before_those_that_never_ran() -> None:
    scheduler = make_scheduler(num_blocks=5)
    add(scheduler, "old", 8, max_tokens=2)
    add(scheduler, "young", 4)
    add(scheduler, "younger", 4)
    assert scheduled(step(scheduler)) == {"old": 8, "young": 4, "younger": 4}
    add(scheduler, "new", 4)
    plan = step(scheduler)
    assert (scheduled(plan), plan.preempted) == ({"old": 1}, ("younger", "young"))
    assert list(scheduled(step(scheduler))) == ["young", "younger"]


def test_the_preempted_are_recomputed_with_what_they_had_made() -> None:
    scheduler = make_scheduler(num_blocks=5, enable_prefix_caching=False)
    add(scheduler, "old", 8, max_tokens=6)
    add(scheduler, "young", 7, max_tokens=6)
    step(scheduler)
    plan = step(scheduler)
    assert (scheduled(plan), plan.preempted) == ({"old": 1}, ("young",))
    (young,) = next(plan for plan in run_out(scheduler) if "young" in scheduled(plan)).scheduled
    assert (young.num_computed_tokens, len(young.token_ids), young.output_index) == (0, 8, 1)


def test_a_victim_that_was_already_given_tokens_gives_them_back() -> None:
    scheduler = make_scheduler(num_blocks=6)
    add(scheduler, "oldest", 4, max_tokens=16)
    add(scheduler, "cheap", 5, max_tokens=9)
    add(scheduler, "dear", 8, max_tokens=9)
    assert scheduled(step(scheduler)) == {"oldest": 4, "cheap": 5, "dear": 8}
    plan = step(scheduler)
    assert (scheduled(plan), plan.preempted) == ({"oldest": 1, "dear": 1}, ("cheap",))


def test_tokens_that_a_victim_gave_back_go_to_a_prefill() -> None:
    scheduler = make_scheduler(
        num_blocks=19, max_num_batched_tokens=12, max_num_seqs=4, enable_prefix_caching=False
    )
    for request_id, num_prompt_tokens in (("oldest", 4), ("cheap", 5), ("dear", 11)):
        add(scheduler, request_id, num_prompt_tokens, max_tokens=20)
        step(scheduler)
    add(scheduler, "prefill", 44)
    chunks = [scheduled(step(scheduler)) for _ in range(4)]
    assert [chunk["prefill"] for chunk in chunks] == [9, 9, 9, 5]
    assert all(chunk["cheap"] == 1 for chunk in chunks)
    plan = step(scheduler)
    assert (scheduled(plan), plan.preempted) == ({"oldest": 1, "dear": 1, "prefill": 10}, ("cheap",))


def test_a_chunk_shrinks_to_the_room_that_is_left() -> None:
    """Promised room is soft: the decoder's growth took one of the last two blocks."""
    scheduler = make_scheduler(num_blocks=11, max_num_batched_tokens=9, max_num_seqs=9)
    add(scheduler, "decoder", 5, max_tokens=20)
    step(scheduler)
    add(scheduler, "prefill", 32)
    chunks = [scheduled(step(scheduler)) for _ in range(4)]
    assert chunks == [{"decoder": 1, "prefill": 8}] * 3 + [{"decoder": 1, "prefill": 4}]
    assert scheduler.counters().preemptions_total == 0
    plan = step(scheduler)
    assert (scheduled(plan), plan.preempted) == ({"decoder": 1}, ("prefill",))


def test_the_oldest_of_the_highest_class_is_never_a_victim() -> None:
    scheduler = make_scheduler(num_blocks=6, enable_prefix_caching=False)
    add(scheduler, "oldest", 4, max_tokens=16)
    add(scheduler, "young", 12, max_tokens=8)
    step(scheduler)
    plan = step(scheduler)
    assert scheduled(plan) == {"oldest": 1}
    assert plan.preempted == ("young",)


def test_a_lower_class_makes_room_even_if_it_came_first() -> None:
    scheduler = make_scheduler(num_blocks=5)
    add(scheduler, "batch", 8, priority=1, max_tokens=8)
    add(scheduler, "interactive", 8, max_tokens=8)
    step(scheduler)
    plan = step(scheduler)
    assert (scheduled(plan), plan.preempted) == ({"interactive": 1}, ("batch",))


def test_nobody_is_admitted_into_room_made_by_preemption() -> None:
    scheduler = make_scheduler(num_blocks=6, enable_prefix_caching=False)
    add(scheduler, "old", 8, max_tokens=8)
    add(scheduler, "young", 12, max_tokens=8)
    step(scheduler)
    add(scheduler, "new", 4)
    plan = step(scheduler)
    assert (scheduled(plan), plan.preempted) == ({"old": 1}, ("young",))
    assert scheduled(step(scheduler)) == {"old": 1}


def test_after_its_third_preemption_a_request_comes_back_only_with_room_up_to_its_end() -> None:
    """Pool of 5 blocks of 16."""
    scheduler = make_scheduler(num_blocks=6, block_size=16)
    add(scheduler, "victim", 16, priority=1, max_tokens=40, block_size=16)
    for pusher in ("pusher 1", "pusher 2", "pusher 3"):
        assert list(scheduled(step(scheduler))) == ["victim"]
        add(scheduler, pusher, 48, block_size=16)
        assert scheduled(step(scheduler)) == {"victim": 1, pusher: 48}
        assert step(scheduler).preempted == ("victim",)
        if pusher == "pusher 3":
            add(scheduler, "holds 2", 17, max_tokens=9, block_size=16)
        scheduler.abort(pusher, 0)
    # What it had, 2 blocks, would fit into the 3 that are left; the 4 up to its end do not.
    assert scheduled(step(scheduler)) == {"holds 2": 17}
    assert scheduled(step(scheduler)) == {"holds 2": 1}
    scheduler.abort("holds 2", 0)
    assert list(scheduled(step(scheduler))) == ["victim"]
    # Now 2 of the other 3 blocks are kept for it, and even a higher class does not push it out.
    add(scheduler, "new", 16, block_size=16)
    assert scheduled(step(scheduler)) == {"victim": 1, "new": 16}
    assert scheduled(step(scheduler)) == {"victim": 1}
    run_out(scheduler)
    assert scheduler.counters().preemptions_total == 3


# --- the end of a request ------------------------------------------------------------------


def test_the_end_token_ends_it_and_is_told() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    output = finish(scheduler, EOS)
    assert (output.token_ids, output.finish_reason) == ((EOS,), "stop")


def test_ignore_eos_goes_on_to_the_limit() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=2, ignore_eos=True)
    assert [finish(scheduler, EOS).finish_reason for _ in range(2)] == [None, "length"]


def test_an_end_token_as_the_last_one_allowed_is_a_stop() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=1)
    assert finish(scheduler, EOS).finish_reason == "stop"


def test_the_context_ends_it_before_max_tokens() -> None:
    scheduler = make_scheduler(max_model_len=7)
    add(scheduler, "a", 5, max_tokens=100)
    assert [finish(scheduler).finish_reason for _ in range(2)] == [None, "length"]


def test_cached_tokens_are_told_once_and_timing_at_the_end() -> None:
    scheduler = make_scheduler()
    add(scheduler, "first", range(9), max_tokens=1)
    finish(scheduler)
    add(scheduler, "second", range(9), max_tokens=3)
    outputs = [finish(scheduler) for _ in range(3)]
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
    assert timings == {"old": Timing(1.0, 1.0, 6.0, 0.0, 0), "young": Timing(0.5, 1.0, 14.0, 12.0, 1)}


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


# --- resumption ----------------------------------------------------------------------------


def test_a_resumed_request_goes_on_where_it_was_and_repeats_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 5, max_tokens=4, output_token_ids=(50, 51))
    (only,) = step(scheduler).scheduled
    assert (only.token_ids[5:], only.output_index) == ((50, 51), 2)
    output = finish(scheduler)
    assert (output.first_output_index, output.finish_reason) == (3, "length")
    assert scheduler.counters().prefix_queries_tokens_total == 0


# --- aborts and failures -------------------------------------------------------------------


def test_an_abort_tells_the_end_at_once_and_an_unknown_id_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 5, now=1.0)
    output = scheduler.abort("a", 3.0)
    assert output == RequestOutput(
        request_id="a",
        attempt=0,
        sibling=0,
        first_output_index=0,
        token_ids=(),
        finish_reason="abort",
        num_cached_tokens=0,
        timing=Timing(2.0, 0.0, 0.0, 0.0, 0),
    )
    assert scheduler.abort("a", 3.0) is None


def test_blocks_of_a_launched_request_stay_until_its_step_has_ended() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "a", range(9), max_tokens=3)
    plan = scheduler.schedule(0)
    scheduler.abort("a", 0)
    scheduler.check_integrity()
    assert (scheduler.counters().requests_running, scheduler.counters().blocks_in_use) == (0, 3)
    assert scheduler.update(plan, answer(plan), 0) == []
    scheduler.check_integrity()
    counters = scheduler.counters()
    assert (counters.blocks_in_use, counters.blocks_evictable) == (0, 0), "nothing computed got a name"


def test_an_id_may_come_back_while_its_aborted_step_is_in_flight() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", range(9))
    plan = scheduler.schedule(0)
    scheduler.abort("a", 0)
    add(scheduler, "a", range(9))
    assert scheduler.update(plan, answer(plan), 0) == []
    assert step(scheduler).scheduled[0].token_ids == tuple(range(9))


def test_a_failed_step_ends_its_requests_and_names_none_of_their_blocks() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "a", range(32))
    add(scheduler, "waits", range(100, 117))
    plan = scheduler.schedule(0)
    (output,) = scheduler.fail(plan, 0)
    assert (output.request_id, output.finish_reason, output.error_code) == ("a", "error", "engine_error")
    scheduler.check_integrity()
    counters = scheduler.counters()
    assert (counters.blocks_in_use, counters.blocks_evictable, counters.requests_waiting) == (0, 0, 1)


def test_an_aborted_request_of_a_failed_step_ends_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    plan = scheduler.schedule(0)
    scheduler.abort("a", 0)
    assert scheduler.fail(plan, 0) == []
    scheduler.check_integrity()
    assert scheduler.counters().blocks_in_use == 0


def test_the_integrity_check_sees_a_waiting_request_with_progress() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    scheduler._requests.waiting["a"].num_computed_tokens = 1
    with pytest.raises(IntegrityError, match="a waiting request holds blocks"):
        scheduler.check_integrity()


def test_the_integrity_check_sees_a_reserve_that_is_not_there() -> None:
    scheduler = make_scheduler(num_blocks=7)
    add(scheduler, "a", 5, max_tokens=13)
    add(scheduler, "b", 5)
    step(scheduler)
    scheduler._requests.running["a"].timeline.num_preemptions = 3
    with pytest.raises(IntegrityError, match="3 blocks are kept for reserved requests"):
        scheduler.check_integrity()


def test_one_step_is_in_flight_at_a_time() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a")
    plan = scheduler.schedule(0)
    with pytest.raises(RuntimeError, match="step 1 is in flight"):
        scheduler.schedule(0)
    scheduler.update(plan, answer(plan), 0)
    with pytest.raises(RuntimeError, match="step 1 is not the one in flight"):
        scheduler.update(plan, answer(plan), 0)


def decoding(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 9, max_tokens=9, hash_root=root)
    step(scheduler)


def mid_chunk(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 39, max_tokens=1, hash_root=root)
    step(scheduler)


def last_token(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "a", 9, max_tokens=2, hash_root=root)
    step(scheduler)


def queued(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "seat", 4, max_tokens=9)
    add(scheduler, "seat too", 4, max_tokens=9)
    step(scheduler)
    add(scheduler, "a", 9, hash_root=root)


def preempted(scheduler: Scheduler, root: bytes) -> None:
    add(scheduler, "old", 24, max_tokens=16)
    add(scheduler, "a", 15, max_tokens=9, hash_root=root)
    for _ in range(10):
        if step(scheduler).preempted:
            return
    raise AssertionError("nobody was preempted")


@pytest.mark.parametrize("reach", [queued, mid_chunk, preempted, decoding, last_token])
@pytest.mark.parametrize("is_in_flight", [False, True])
def test_an_abort_in_any_state_gives_back_everything(reach, is_in_flight: bool) -> None:
    """Case 1, 200 times each."""
    scheduler = make_scheduler(num_blocks=11, max_num_seqs=2, max_num_batched_tokens=32)
    for number in range(200):
        reach(scheduler, b"chain %d" % number)  # nobody hits what an earlier round computed
        plan = scheduler.schedule(0) if is_in_flight else None
        output = scheduler.abort("a", 0)
        assert output is not None
        assert output.finish_reason == "abort"
        if plan is not None:
            scheduler.update(plan, answer(plan), 0)
        scheduler.check_integrity()
        run_out(scheduler)
    counters = scheduler.counters()
    assert (counters.requests_running, counters.requests_waiting, counters.blocks_in_use) == (0, 0, 0)
