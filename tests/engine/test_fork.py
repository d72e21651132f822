"""n answers to one prompt: computed once, shared block by block, each on its own afterwards."""

from __future__ import annotations

import pytest

from engine.refusal import RequestRefused
from engine.step import SampledToken, StepResult
from tests.builders import (
    EOS,
    add,
    answer,
    make_core,
    make_request,
    make_scheduler,
    run_out,
    run_to_end,
    scheduled,
    step,
    tape_of,
    tokens_of,
)


def by_sibling(outputs: list) -> dict[int, list[int]]:
    return {
        sibling: tokens_of(output for output in outputs if output.sibling == sibling)
        for sibling in {output.sibling for output in outputs}
    }


def test_the_prompt_is_computed_once_and_all_siblings_draw_from_its_logits() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 10, n=3, max_tokens=4)
    plan = scheduler.schedule(0)
    assert [(row.sibling, row.n, row.num_scheduled_tokens, row.output_index) for row in plan.scheduled] == [
        (0, 3, 10, 0)
    ]
    drawn = StepResult(plan.step, (7,), siblings={0: (SampledToken(8), SampledToken(9))})
    outputs = scheduler.update(plan, drawn, 0)
    assert by_sibling(outputs) == {0: [7], 1: [8], 2: [9]}
    assert [
        (row.sibling, row.n, row.token_ids, row.num_computed_tokens, row.output_index)
        for row in step(scheduler).scheduled
    ] == [(0, 1, (7,), 10, 1), (1, 1, (8,), 10, 1), (2, 1, (9,), 10, 1)]


def test_a_chunk_that_does_not_reach_the_end_of_the_prompt_draws_for_nobody() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    add(scheduler, "a", 40, n=3)
    assert [[(row.n, row.output_index) for row in step(scheduler).scheduled] for _ in range(2)] == [
        [(1, None)],
        [(3, 0)],
    ]


def test_all_but_the_last_writer_copy_the_block_that_is_not_full() -> None:
    """Prompt of 10 in blocks of 4: two full ones are shared, the third is copied twice."""
    scheduler = make_scheduler()
    add(scheduler, "a", 10, n=3, max_tokens=4)
    step(scheduler)
    assert scheduler.counters().blocks_in_use == 3
    plan = step(scheduler)
    assert plan.copies == ((3, 4), (3, 5))
    assert [row.block_table for row in plan.scheduled] == [(1, 2, 4), (1, 2, 5), (1, 2, 3)]
    assert scheduler.counters().blocks_in_use == 5
    assert step(scheduler).copies == ()


@pytest.mark.parametrize("is_caching", [True, False])
def test_of_a_prompt_that_fills_its_last_block_nothing_is_copied(is_caching: bool) -> None:
    scheduler = make_scheduler(enable_prefix_caching=is_caching)
    add(scheduler, "a", 8, n=2, max_tokens=4)
    step(scheduler)
    plan = step(scheduler)
    assert [row.block_table for row in plan.scheduled] == [(1, 2, 3), (1, 2, 4)]
    assert plan.copies == ()
    run_out(scheduler)
    assert scheduler.counters().blocks_in_use == 0


def test_the_last_who_writes_a_shared_block_keeps_it() -> None:
    """The leader ended with its first token, so its block is the sibling's alone."""
    scheduler = make_scheduler()
    add(scheduler, "a", 10, n=2, max_tokens=3)
    step(scheduler)
    scheduler.abort("a", 0, sibling=0)
    plan = step(scheduler)
    assert [(row.sibling, row.block_table) for row in plan.scheduled] == [(1, (1, 2, 3))]
    assert plan.copies == ()


def test_a_sibling_whose_first_token_is_its_last_ends_with_it() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 10, n=2, max_tokens=4)
    plan = scheduler.schedule(0)
    drawn = StepResult(plan.step, (7,), siblings={0: (SampledToken(EOS),)})
    ends = {output.sibling: output.finish_reason for output in scheduler.update(plan, drawn, 0)}
    assert ends == {0: None, 1: "stop"}
    assert [row.sibling for row in step(scheduler).scheduled] == [0]


def test_siblings_play_the_same_tape_each_to_its_own_end() -> None:
    request = make_request("a", 10, n=3, max_tokens=5)
    core = make_core(tape_of(request, [20, 21, 22, 23, 24]))
    core.add(request)
    assert by_sibling(run_to_end(core)["a"]) == {sibling: [20, 21, 22, 23, 24] for sibling in range(3)}


def test_the_prompt_is_looked_up_and_told_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", range(9), max_tokens=1)
    run_out(scheduler)
    add(scheduler, "b", range(9), n=3, max_tokens=2)
    outputs = []
    while scheduler.has_work():
        plan = scheduler.schedule(0)
        outputs += scheduler.update(plan, answer(plan), 0)
    counters = scheduler.counters()
    assert (counters.prefix_queries_tokens_total, counters.prefix_hits_tokens_total) == (18, 8)
    assert [output.num_cached_tokens for output in outputs if output.num_cached_tokens is not None] == [8]


def test_one_sibling_ends_alone_and_the_others_go_on() -> None:
    request = make_request("a", 10, n=3, max_tokens=5, ignore_eos=True)
    core = make_core(tape_of(request, [20, 21, 22, 23, 24]))
    core.add(request)
    core.step()
    core.step()
    (output,) = core.abort("a", sibling=1)
    assert (output.sibling, output.finish_reason, output.first_output_index) == (1, "abort", 2)
    core.check_integrity()
    rest = run_to_end(core)["a"]
    assert by_sibling(rest) == {0: [22, 23, 24], 2: [22, 23, 24]}


def test_a_sibling_that_is_not_there_yet_cannot_be_ended_alone() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 40, n=2)
    assert scheduler.abort("a", 0, sibling=0) == scheduler.abort("a", 0, sibling=1) == []
    assert {output.sibling for output in scheduler.abort("a", 0)} == {0, 1}
    assert not scheduler.has_work()


def test_each_sibling_has_a_seat_from_the_start() -> None:
    scheduler = make_scheduler(max_num_seqs=4)
    add(scheduler, "a", 5, n=3)
    add(scheduler, "b", 5, n=2)
    add(scheduler, "c", 5)
    assert [row.request_id for row in step(scheduler).scheduled] == ["a"], "nobody overtakes b"
    run_out(scheduler)


@pytest.mark.parametrize(("num_blocks", "is_admitted"), [(6, False), (7, True)])
def test_admission_counts_a_block_for_each_copy(num_blocks: int, is_admitted: bool) -> None:
    """A prompt of 3 blocks beside a request of 1, and 2 siblings that copy one each."""
    scheduler = make_scheduler(num_blocks=num_blocks)
    add(scheduler, "seat", 2, max_tokens=2)
    add(scheduler, "a", 10, n=3, max_tokens=2)
    assert ("a" in scheduled(step(scheduler))) == is_admitted
    run_out(scheduler)


@pytest.mark.parametrize(("num_blocks", "is_admitted"), [(20, False), (21, True)])
def test_the_copies_of_a_prompt_in_chunks_are_not_promised_again(num_blocks: int, is_admitted: bool) -> None:
    """A prompt of 15 blocks with 2 siblings, half computed, and one of 3 blocks that comes then."""
    scheduler = make_scheduler(num_blocks=num_blocks, max_num_batched_tokens=40)
    add(scheduler, "a", 60, n=3, max_tokens=2)
    step(scheduler)
    add(scheduler, "late", 9, max_tokens=2)
    assert ("late" in scheduled(step(scheduler))) == is_admitted
    run_out(scheduler)


def test_a_sibling_that_is_preempted_comes_back_alone() -> None:
    """Pool of 5: both siblings grow until the younger one makes room."""
    request = make_request("a", 7, n=2, max_tokens=9, ignore_eos=True)
    core = make_core(tape_of(request, range(20, 29)), num_blocks=6, enable_prefix_caching=False)
    core.add(request)
    outputs = run_to_end(core)["a"]
    assert by_sibling(outputs) == {sibling: list(range(20, 29)) for sibling in range(2)}
    ends = {output.sibling: output.timing for output in outputs if output.timing}
    assert (ends[0].num_preemptions, ends[1].num_preemptions) == (0, 1)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"n": 0}, "n must be between 1 and 4"),
        ({"n": 5}, "n must be between 1 and 4"),
        ({"n": 2, "output_token_ids": (1,)}, "n must be 1 where output tokens are resumed"),
        ({"n": 4, "prompt": 20}, "the KV pool holds 20 beside 4 answers"),
    ],
)
def test_what_could_never_be_forked_is_refused(fields: dict, complaint: str) -> None:
    scheduler = make_scheduler(num_blocks=9, max_num_seqs=4)
    with pytest.raises(RequestRefused, match=complaint):
        add(scheduler, "a", fields.pop("prompt", 5), max_tokens=4, **fields)


def test_an_error_before_the_fork_is_told_to_every_sibling_and_the_lookup_to_the_first() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 9, n=3)
    plan = scheduler.schedule(0)
    outputs = scheduler.fail(plan, 0)
    assert [(output.sibling, output.finish_reason) for output in outputs] == [
        (0, "error"),
        (1, "error"),
        (2, "error"),
    ]
    assert [output.num_cached_tokens for output in outputs] == [0, None, None]
    assert [output.lookup is not None for output in outputs] == [True, False, False]
