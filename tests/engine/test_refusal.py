"""What can never be served is refused at once, with the numbers."""

from __future__ import annotations

import pytest

from engine.scheduler import RequestRefused
from tests.builders import (
    add,
    make_scheduler,
    one_output,
    step,
)


@pytest.mark.parametrize(
    ("prompt", "fields", "code", "message"),
    [
        ((), {}, "empty_prompt", "prompt must hold at least one token"),
        ((1, -1), {}, "invalid_value", "prompt token ids must be between 0 and 2147483647"),
        ((2**31,), {}, "invalid_value", "prompt token ids must be between 0 and 2147483647"),
        (
            5,
            {"output_token_ids": (2**31,)},
            "invalid_value",
            "output token ids must be between 0 and 2147483647",
        ),
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
    assert one_output(scheduler).finish_reason == "length"


def test_a_live_id_is_refused_and_a_finished_one_is_free_again() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", max_tokens=1)
    with pytest.raises(RequestRefused, match="request a is already here"):
        add(scheduler, "a")
    step(scheduler)
    add(scheduler, "a")


def test_a_capacity_miss_hurts_nobody_behind_it() -> None:
    """The context is 4096 tokens, the pool holds 1024."""
    scheduler = make_scheduler(num_blocks=65, max_model_len=4096, block_size=16, max_num_batched_tokens=256)
    with pytest.raises(RequestRefused, match="need 1504 slots: the KV pool holds 1024"):
        add(scheduler, "too long", 1500, block_size=16)
    add(scheduler, "short", 10, block_size=16)
    assert step(scheduler).scheduled[0].output_index == 0
    with pytest.raises(RequestRefused, match="need 1500 slots: the KV pool holds 1024"):
        add(scheduler, "too long an answer", 1000, max_tokens=500, block_size=16)
