"""Prompts that nobody waits for: a small part of what all others leave of each step. Block size 4."""

from __future__ import annotations

from engine.policy import Candidate, FirstComeFirstServed
from engine.scheduler import Scheduler
from engine.step_builder import BACKGROUND_PART
from tests.builders import add, make_scheduler, run_out, scheduled, step

BACKGROUND = 9


class WithBackground(FirstComeFirstServed):
    def is_background(self, candidate: Candidate) -> bool:
        return candidate.priority == BACKGROUND


def a_scheduler(**sizes: int) -> Scheduler:
    """Steps of 32 tokens, of which 8 are for the background."""
    return make_scheduler(WithBackground(), **{"max_num_batched_tokens": 32, **sizes})


def test_a_part_of_each_step_is_all_it_gets_alone_or_not() -> None:
    scheduler = a_scheduler()
    add(scheduler, "bg", 20, priority=BACKGROUND, max_tokens=1)
    assert scheduled(step(scheduler)) == {"bg": 32 // BACKGROUND_PART}
    add(scheduler, "a", 10, max_tokens=9)
    assert scheduled(step(scheduler)) == {"a": 10, "bg": 8}
    assert scheduled(step(scheduler)) == {"a": 1, "bg": 4}
    assert scheduled(step(scheduler)) == {"a": 1}


def test_all_of_it_shares_that_part_and_the_next_begins_when_the_first_has_ended() -> None:
    scheduler = a_scheduler()
    for request_id in ("one", "two"):
        add(scheduler, request_id, 12, priority=BACKGROUND, max_tokens=1)
    steps = [scheduled(plan) for plan in run_out(scheduler)]
    assert steps == [{"one": 8}, {"one": 4, "two": 4}, {"two": 8}]


def test_who_is_waited_for_leaves_what_he_does_not_need_long_or_short() -> None:
    scheduler = a_scheduler()
    add(scheduler, "bg", 8, priority=BACKGROUND, max_tokens=1)
    add(scheduler, "long", 50, max_tokens=1)
    steps = [scheduled(plan) for plan in run_out(scheduler)]
    assert steps == [{"long": 32}, {"long": 18, "bg": 8}]


def test_a_step_of_fewer_tokens_than_parts_still_gets_on() -> None:
    scheduler = a_scheduler(max_num_batched_tokens=2, max_num_seqs=2)
    add(scheduler, "bg", 3, priority=BACKGROUND, max_tokens=1)
    assert [scheduled(plan) for plan in run_out(scheduler)] == [{"bg": 1}] * 3


def test_a_policy_that_says_nothing_knows_no_background() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "low", 20, priority=BACKGROUND)
    assert scheduled(step(scheduler)) == {"low": 20}
