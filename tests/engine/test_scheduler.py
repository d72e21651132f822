"""The token budget and admission, each rule in the smallest case that shows it. Block size 4."""

from __future__ import annotations

import pytest

from engine.prefix_cache import PrefixCache
from tests.builders import (
    add,
    answer,
    make_scheduler,
    run_out,
    scheduled,
    step,
)


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


def test_admission_counts_the_whole_prompt_not_the_next_chunk() -> None:
    """The pool has 20 blocks: a decoder that holds 10, a prompt of 14, chunks of 2, no cache."""
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


@pytest.mark.parametrize("num_long", [1, 5])
def test_a_short_prompt_beside_prompts_of_128_k_has_its_first_token_within_two_steps(num_long: int) -> None:
    """Whenever it comes: 40 of them, one each 7 steps, while those before go on."""
    length = 128 * 1024
    scheduler = make_scheduler(
        num_blocks=num_long * length // 16 + 1001, block_size=16, max_model_len=length + 99, max_num_seqs=64
    )
    for number in range(num_long):
        add(scheduler, f"long {number}", length, max_tokens=1, block_size=16)
    arrived, begun = {}, {}
    for number in range(40 * 7):
        if number % 7 == 0:
            arrived[f"short {number}"] = number
            add(scheduler, f"short {number}", 60, max_tokens=30, block_size=16)
        plan = scheduler.schedule(0)
        begun |= {row.request_id: number for row in plan.scheduled if row.output_index == 0}
        scheduler.update(plan, answer(plan), 0)
    scheduler.check_integrity()
    assert {begun[request_id] - arrived[request_id] + 1 for request_id in arrived} <= {1, 2}


def test_a_crowd_of_long_prompts_that_wait_is_not_looked_up_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(num_blocks=2001, max_num_batched_tokens=32, max_num_seqs=8)
    for number in range(500):
        add(scheduler, f"long {number}", 300)
    step(scheduler)
    looked_up: list[int] = []
    match = PrefixCache.match
    monkeypatch.setattr(PrefixCache, "match", lambda *arguments: looked_up.append(1) or match(*arguments))
    step(scheduler)
    assert 0 < len(looked_up) <= 2 * 8


def test_a_short_prompt_is_found_behind_a_crowd_of_long_ones() -> None:
    scheduler = make_scheduler(num_blocks=2001, max_num_batched_tokens=32, max_num_seqs=8)
    for number in range(500):
        add(scheduler, f"long {number}", 300)
    step(scheduler)
    add(scheduler, "short", 15)
    assert scheduled(step(scheduler))["short"] == 15
