"""Who makes room when blocks run out, and that nobody does so for ever. Block size 4 unless said."""

from __future__ import annotations

from random import Random

from engine.request import RequestOutput
from tests.builders import (
    add,
    answer,
    make_scheduler,
    run_out,
    scheduled,
    step,
)


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


def test_with_demand_of_three_pools_all_finish_and_nobody_is_preempted_for_ever() -> None:
    random = Random(3)
    scheduler = make_scheduler(num_blocks=101, max_num_seqs=32, max_num_batched_tokens=64)
    wanted = 0
    for number in range(40):
        prompt, max_tokens = random.randint(1, 30), random.randint(1, 40)
        wanted += -(-(prompt + max_tokens) // 4)
        add(scheduler, f"r{number}", prompt, max_tokens=max_tokens)
    assert wanted > 300
    ends: dict[str, RequestOutput] = {}
    num_steps = 0
    while scheduler.has_work():
        num_steps += 1
        plan = scheduler.schedule(0)
        for output in scheduler.update(plan, answer(plan), 0):
            if output.finish_reason is not None:
                ends[output.request_id] = output
        scheduler.check_integrity()
    assert {output.finish_reason for output in ends.values()} == {"length"}
    assert len(ends) == 40
    counts = [output.timing.num_preemptions for output in ends.values() if output.timing]
    assert 0 < max(counts) <= 3
    assert num_steps < 40 * 40
