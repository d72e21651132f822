"""A charge that is taken back: who got no service after all is as if it had never left by its turn."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.fair_queue import Charge, FairQueue, Queued, Share
from tests.tenants.fair_builders import a_share, an_entry, popped, pushed
from tests.tenants.fair_contest import Contest
from tests.tenants.test_fair_queue_bound import (
    QUANTA,
    SEEDS,
    WEIGHTS,
    assert_bounded,
    push_some,
    shares_of,
)

SHARES = (
    a_share("a", 1),
    a_share("b", 2),
    a_share("c", 4),
    a_share("a", 1, "batch"),
    a_share("d", 4, "batch"),
)


@pytest.fixture
def queue() -> FairQueue:
    return FairQueue(256)


def tenants_of(entries: list[Queued]) -> str:
    return "".join(entry.share.tenant_id for entry in entries)


def charged(queue: FairQueue) -> Charge:
    """For whose turn it is."""
    entry = queue.pop()
    assert entry is not None
    return queue.charge_of(entry)


def test_the_tenant_s_next_one_goes_in_its_stead(queue: FairQueue) -> None:
    pushed(queue, "a", 5000, 100)
    pushed(queue, "b", 100, 100)
    queue.refund(charged(queue))
    assert tenants_of(popped(queue, 3)) == "abb"


def test_so_it_does_when_others_went_meanwhile(queue: FairQueue) -> None:
    pushed(queue, "a", 1000, 100, 100, 100)
    pushed(queue, "b", 100, 100, 100, 100)
    charge = charged(queue)
    assert tenants_of(popped(queue, 2)) == "bb"
    queue.refund(charge)
    assert tenants_of(popped(queue, 5)) == "aaabb", "it is two behind"


def test_what_was_charged_beside_it_stays(queue: FairQueue) -> None:
    pushed(queue, "a", 1000, 100, 100)
    pushed(queue, "b", *[100] * 6)
    charge = charged(queue)
    queue.charge(a_share("a"), 250)
    queue.refund(charge)
    assert tenants_of(popped(queue, 5)) == "bbbab"


def test_a_tenant_of_which_all_is_forgotten_gets_nothing_for_it(queue: FairQueue) -> None:
    pushed(queue, "a", 5000)
    charge = charged(queue)  # nobody waits any more
    pushed(queue, "a", *[200] * 10)
    pushed(queue, "b", *[200] * 10)
    popped(queue, 1)
    queue.refund(charge)
    assert tenants_of(popped(queue, 6)) == "bababa"


def test_nor_does_one_that_grants_have_passed(queue: FairQueue) -> None:
    pushed(queue, "a", 100)
    pushed(queue, "b", *[200] * 40)
    charge = charged(queue)
    popped(queue, 20)  # a's part of the last quantum is no more
    pushed(queue, "a", *[200] * 10)
    queue.refund(charge)
    assert tenants_of(popped(queue, 8)) in ("ab" * 4, "ba" * 4)


def test_batch_owes_nothing_for_what_it_did_not_get() -> None:
    queue = FairQueue()
    pushed(queue, a_share("i"), *[100] * 40)
    pushed(queue, a_share("b", service_class="batch"), 1000, 100, 100)
    assert tenants_of(popped(queue, 1)) == "i"
    queue.refund(charged(queue))
    assert tenants_of(popped(queue, 22)) == "b" + "i" * 19 + "b" + "i", "it was its turn"


def test_interactive_that_got_nothing_earns_batch_nothing() -> None:
    queue = FairQueue()
    pushed(queue, a_share("i"), *[100] * 40)
    pushed(queue, a_share("b", service_class="batch"), 100, 100)
    queue.refund(charged(queue))
    assert tenants_of(popped(queue, 3)) == "ibi"


def test_without_the_other_class_there_is_nothing_between_them(queue: FairQueue) -> None:
    pushed(queue, a_share("i"), *[100] * 3)
    queue.refund(charged(queue))
    pushed(queue, a_share("b", service_class="batch"), 100, 100)
    assert tenants_of(popped(queue, 3)) == "ibi"


ENTRY = st.tuples(st.sampled_from(SHARES), st.integers(1, 3000))


@given(st.lists(ENTRY, min_size=3, max_size=40), st.integers(0, 20), st.integers(1, 4))
def test_taken_back_at_once_it_is_as_if_the_request_had_been_given_up_while_it_waited(
    entries: list[tuple[Share, int]], num_before: int, num_back: int
) -> None:
    """Cached prefixes aside: what was granted for it lets a longer one go first."""
    queues = FairQueue(256), FairQueue(256)
    for share, uncached in entries:
        entry = an_entry(share, uncached)
        for queue in queues:
            queue.push(entry)
    one, other = queues
    assert popped(one, num_before) == popped(other, num_before)
    for _ in range(num_back):
        if (entry_in_turn := other.peek()) is not None:
            other.remove(entry_in_turn.entry_id)
            one.refund(charged(one))
    assert popped(one, len(entries)) == popped(other, len(entries))


@given(QUANTA, WEIGHTS, SEEDS)
def test_who_waits_falls_behind_nobody_by_more_than_the_bound(
    quantum: int, weights: list[int], seed: int
) -> None:
    rng, queue, shares = Random(seed), FairQueue(quantum), shares_of(weights)
    contest = Contest(shares, queue)
    to_come: list[Charge] = []
    most_back = dict.fromkeys(contest.shares, 0.0)
    for _ in range(150):
        share = rng.choice(shares)
        if queue.num_of(share.tenant_id) < rng.choice([1, 1, 4]):
            push_some(queue, share, rng, rng.randint(1, 6))
        running = contest.leave(queue, rng.randint(0, 50))
        if running is not None and rng.random() < 0.3:
            contest.running.remove(running)
            to_come.append(queue.charge_of(running.entry))
            for tenant_id in most_back:
                own = [one.entry for one in to_come if one.entry.share.tenant_id == tenant_id]
                at_a_time = sum(entry.input_service for entry in own)
                most_back[tenant_id] = max(most_back[tenant_id], at_a_time)
        elif running is not None:
            contest.make(queue, running, 50)
        if to_come and rng.random() < 0.4:
            contest.take_back(queue, to_come.pop(rng.randrange(len(to_come))))
    assert_bounded(contest, quantum, most_back)
