"""Interactive before batch, and a twentieth of the tokens for batch while it waits."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.batch_floor import MAX_OUTPUT_DEBT
from tenants.fair_queue import FairQueue, Queued
from tests.tenants.fair_builders import a_share, popped, pushed
from tests.tenants.fair_contest import Contest

INTERACTIVE = a_share("i")
BATCH = a_share("b", service_class="batch")


def classes_of(entries: list[Queued]) -> str:
    return "".join(entry.share.service_class[0] for entry in entries)


def test_of_equal_requests_every_twentieth_is_of_batch() -> None:
    queue = FairQueue()
    pushed(queue, BATCH, *[100] * 10)
    pushed(queue, INTERACTIVE, *[100] * 100)
    assert classes_of(popped(queue, 60)) == "ib" + "i" * 18 + "ib" + "i" * 18 + "ib" + "i" * 18


def test_a_large_one_of_batch_is_followed_by_nineteen_times_as_much_of_interactive() -> None:
    queue = FairQueue()
    pushed(queue, BATCH, 1000, 1000)
    pushed(queue, INTERACTIVE, *[100] * 1000)
    assert classes_of(popped(queue, 193)) == "ib" + "i" * 190 + "b"


def test_output_counts_in_the_share() -> None:
    queue = FairQueue()
    pushed(queue, BATCH, *[100] * 10)
    pushed(queue, INTERACTIVE, *[100] * 100)
    assert classes_of(popped(queue, 2)) == "ib"
    queue.charge(BATCH, 100)
    assert classes_of(popped(queue, 39)) == "i" * 38 + "b"


@pytest.mark.parametrize("parts", [1, 100])
def test_output_of_who_went_before_keeps_the_rest_of_batch_waiting_for_so_long_only(parts: int) -> None:
    queue = FairQueue()
    pushed(queue, BATCH, 100, 100)
    pushed(queue, INTERACTIVE, *[1000] * 100)
    assert classes_of(popped(queue, 2)) == "ib"
    for _ in range(parts):
        queue.charge(BATCH, 1_000_000 // parts)
    assert classes_of(popped(queue, 22)) == "i" * (MAX_OUTPUT_DEBT // 1000 + 1) + "b"


def test_input_of_batch_is_paid_for_however_much_that_is() -> None:
    queue = FairQueue()
    pushed(queue, BATCH, 2000, 100)
    pushed(queue, INTERACTIVE, *[1000] * 100)
    assert classes_of(popped(queue, 40)) == "ib" + "i" * 38
    assert classes_of(popped(queue, 1)) == "b"


def test_batch_goes_freely_while_nothing_interactive_waits() -> None:
    queue = FairQueue()
    pushed(queue, BATCH, *[100] * 10)
    assert classes_of(popped(queue, 5)) == "b" * 5
    pushed(queue, INTERACTIVE, 100, 100)
    assert classes_of(popped(queue, 2)) == "ib"


def test_batch_earns_nothing_while_it_does_not_wait() -> None:
    queue = FairQueue()
    pushed(queue, INTERACTIVE, *[100] * 100)
    popped(queue, 50)
    pushed(queue, BATCH, *[100] * 5)
    assert classes_of(popped(queue, 4)) == "ibii"


def test_a_batch_request_at_a_time_gets_no_more_than_a_line_of_them() -> None:
    queue = FairQueue()
    pushed(queue, INTERACTIVE, *[100] * 100)
    served = ""
    for _ in range(60):
        if not queue.num_of("b"):
            pushed(queue, BATCH, 100)
        served += classes_of(popped(queue, 1))
    assert served.count("b") == 3


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_its_part_is_a_twentieth_within_one_request_and_its_output(seed: int) -> None:
    rng, queue = Random(seed), FairQueue()
    contest = Contest([INTERACTIVE, BATCH], queue)
    pushed(queue, INTERACTIVE, *[rng.randint(1, 1000) for _ in range(150)])
    pushed(queue, BATCH, *[rng.randint(100, 700) for _ in range(150)])
    for _ in range(150):
        running = contest.leave(queue, rng.randint(0, 300))
        assert running is not None
        contest.make(queue, running, 300)
        interactive, batch = contest.served["i"], contest.served["b"]
        assert 19 * batch - interactive <= 19 * 1000 < MAX_OUTPUT_DEBT, "one batch request ahead of its part"
        assert interactive - 19 * batch <= 1300, "one interactive request behind it"
