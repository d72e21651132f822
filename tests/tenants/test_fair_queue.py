"""Whose turn it is, by examples with exact values, and by a brute-force model over random histories."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.fair_queue import Charge, FairQueue, Queued
from tenants.service_tokens import service_tokens
from tenants.tenant_line import TenantLine
from tests.tenants.fair_builders import a_share, an_entry, popped, pushed
from tests.tenants.fair_model import FairQueueModel, ModelCharge

QUANTUM = 256


@pytest.fixture
def queue() -> FairQueue:
    return FairQueue(QUANTUM)


def tenants_of(entries: list[Queued]) -> str:
    return "".join(entry.share.tenant_id for entry in entries)


def test_a_token_of_service_is_one_to_compute_ten_cached_ones_or_one_of_output() -> None:
    assert service_tokens(300) == 300
    assert service_tokens(300, cached_tokens=160, output_tokens=7) == 323
    assert an_entry(uncached=300, cached=160).input_service == 316


class TestInsideATenant:
    def test_first_come_first_served(self, queue: FairQueue) -> None:
        entries = pushed(queue, "a", 10, 1000, 1)
        assert popped(queue, 3) == entries

    def test_a_longer_prefix_does_not_overtake(self, queue: FairQueue) -> None:
        entries = [an_entry("a"), an_entry("a", cached=1600)]
        for entry in entries:
            queue.push(entry)
        assert popped(queue, 2) == entries

    def test_what_was_removed_is_not_served_nor_charged(self, queue: FairQueue) -> None:
        first, second = pushed(queue, "a", 5000, 100)
        (other,) = pushed(queue, "b", 100)
        assert queue.remove(first.entry_id) == first
        assert first.entry_id not in queue
        assert popped(queue, 2) == [second, other]

    def test_what_does_not_wait_is_not_removed(self, queue: FairQueue) -> None:
        (entry,) = pushed(queue, "a", 100)
        queue.pop()
        assert queue.remove(entry.entry_id) is None
        assert queue.remove("unheard of") is None

    def test_an_id_waits_once(self, queue: FairQueue) -> None:
        (entry,) = pushed(queue, "a", 100)
        with pytest.raises(ValueError, match=entry.entry_id):
            queue.push(entry)
        assert len(queue) == 1


class TestAmongTenants:
    def test_equal_ones_take_turns(self, queue: FairQueue) -> None:
        pushed(queue, "a", *[200] * 4)
        pushed(queue, "b", *[200] * 4)
        assert tenants_of(popped(queue, 8)) == "abababab"

    def test_turns_are_by_tokens_not_by_requests(self, queue: FairQueue) -> None:
        pushed(queue, "a", *[100] * 8)
        pushed(queue, "b", *[400] * 2)
        assert tenants_of(popped(queue, 10)) == "abaaaabaaa"

    def test_weight_four_gets_four_times_the_tokens(self, queue: FairQueue) -> None:
        pushed(queue, a_share("p", weight=4), *[256] * 40)
        pushed(queue, a_share("f", weight=1), *[256] * 40)
        assert tenants_of(popped(queue, 40)).count("p") == 32

    def test_the_longest_cached_prefix_of_those_in_credit_goes_first(self, queue: FairQueue) -> None:
        queue.push(an_entry("a", 200))
        queue.push(an_entry("b", 200, cached=160))
        queue.push(an_entry("c", 200, cached=320))
        assert tenants_of(popped(queue, 3)) == "cba"

    def test_no_prefix_goes_before_credit(self, queue: FairQueue) -> None:
        for _ in range(3):
            queue.push(an_entry("a", 100, cached=1600))
        pushed(queue, "b", *[100] * 6)
        # One of a's is 100 + 160 tokens of service, just more than the quantum; of b's it takes three.
        assert tenants_of(popped(queue, 9)) == "abbbabbba"

    def test_output_is_charged_as_it_comes(self, queue: FairQueue) -> None:
        pushed(queue, "a", *[100] * 4)
        pushed(queue, "b", *[100] * 4)
        assert tenants_of(popped(queue, 2)) == "ab"
        queue.charge(a_share("a"), 150)
        assert tenants_of(popped(queue, 4)) == "bbab"

    def test_output_of_a_tenant_that_does_not_wait_is_a_debt(self, queue: FairQueue) -> None:
        pushed(queue, "a", 100)
        pushed(queue, "b", *[100] * 8)
        assert tenants_of(popped(queue, 1)) == "a"
        queue.charge(a_share("a"), 400)
        pushed(queue, "a", 100)
        assert tenants_of(popped(queue, 9)) == "bbbbbbabb"

    def test_negative_service_is_refused(self, queue: FairQueue) -> None:
        with pytest.raises(ValueError, match="-1"):
            queue.charge(a_share(), -1)

    def test_a_tenant_that_was_idle_earned_no_credit(self, queue: FairQueue) -> None:
        pushed(queue, "b", *[200] * 100)
        popped(queue, 50)
        pushed(queue, "a", *[200] * 50)
        # b's 10,000 tokens from before are not made up for.
        assert tenants_of(popped(queue, 20)) == "ab" * 10

    def test_going_and_coming_back_renews_no_quantum(self, queue: FairQueue) -> None:
        pushed(queue, "b", *[100] * 100)
        served = ""
        for _ in range(40):
            if not queue.num_of("a"):
                pushed(queue, "a", 100)
            served += tenants_of(popped(queue, 1))
        assert served.count("a") == 20

    def test_a_newcomer_goes_next_however_long_the_others_lines_are(self, queue: FairQueue) -> None:
        for tenant_id in ("b", "c", "d"):
            pushed(queue, a_share(tenant_id, weight=4), *[100] * 1000)
        popped(queue, 500)
        pushed(queue, "a", 100)
        assert tenants_of(popped(queue, 1)) == "a"

    def test_what_is_served_while_nobody_waits_is_nobody_s_loss(self, queue: FairQueue) -> None:
        queue.charge(a_share("a"), 100_000)
        pushed(queue, "a", *[200] * 5)
        pushed(queue, "b", *[200] * 5)
        assert tenants_of(popped(queue, 4)) == "abab"

    def test_a_quantum_is_at_least_one_token(self) -> None:
        with pytest.raises(ValueError, match="quantum"):
            FairQueue(0)


class TestAhead:
    def test_nothing_is_ahead_in_an_empty_queue(self, queue: FairQueue) -> None:
        assert queue.work_ahead(a_share()) == (0, 0)

    def test_the_tenant_s_own_line_is_ahead_and_what_keeps_the_others_level(self, queue: FairQueue) -> None:
        pushed(queue, "a", 100, 100)
        pushed(queue, a_share("p", weight=4), *[100] * 50)
        assert queue.work_ahead(a_share("a")) == (1100, 11)

    def test_siblings_count_a_seat_each(self, queue: FairQueue) -> None:
        """Of a tenant of which a part is ahead, as many as its requests ask for on the mean."""
        for share, num_siblings in ((a_share("a"), 3), (a_share("p", weight=4), 1), (a_share("p", 4), 3)):
            for _ in range(10):
                queue.push(an_entry(share)._replace(num_siblings=num_siblings))
        assert queue.work_of(a_share("p")) == (2000, 40)
        assert queue.work_ahead(a_share("p", 4)) == (2000 + 600, 40 + 6 * 3)
        assert queue.work_ahead(a_share("a")) == (1000 + 2000, 30 + 40)
        (gone,) = popped(queue, 1)
        assert queue.work_of(gone.share).seats == {"a": 30, "p": 40}[gone.share.tenant_id] - gone.num_siblings

    def test_newcomers_that_came_before_are_ahead(self, queue: FairQueue) -> None:
        for number in range(30):
            pushed(queue, f"t{number}", 500)
        assert queue.work_ahead(a_share("a")) == (15_000, 30)

    def test_a_twentieth_of_batch_is_ahead_of_interactive(self, queue: FairQueue) -> None:
        pushed(queue, "a", *[100] * 38)
        pushed(queue, a_share("b", service_class="batch"), *[100] * 10)
        assert queue.work_ahead(a_share("a")) == (4000, 40)

    def test_nineteen_twentieths_of_interactive_are_ahead_of_batch(self, queue: FairQueue) -> None:
        batch = a_share("b", service_class="batch")
        pushed(queue, "a", *[100] * 100)
        pushed(queue, batch, 100, 100)
        assert queue.work_ahead(batch) == (4000, 40)

    def test_what_stands_lower_can_be_left_out(self, queue: FairQueue) -> None:
        paid, batch = a_share("p", 4), a_share("b", service_class="batch")
        for share, size in ((paid, 400), (a_share("q", 4), 400), (a_share("f", 1), 300), (batch, 100)):
            pushed(queue, share, *[size] * 4)
        assert queue.work_ahead(paid) == (4000, 12)
        assert queue.work_ahead(paid, without_lower=True) == (3200, 8)
        assert queue.work_ahead(batch, without_lower=True) == queue.work_ahead(batch)

    @given(
        sizes=st.lists(
            st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 64), st.integers(1, 12)), max_size=5
        ),
        num_popped=st.integers(0, 20),
        newcomer=st.integers(0, 5),
    )
    def test_with_equal_requests_inside_each_tenant_it_is_exact(
        self, sizes: list[tuple[int, int, int]], num_popped: int, newcomer: int
    ) -> None:
        queue = FairQueue(QUANTUM)
        shares = [a_share(f"t{number}", weight) for number, (weight, _, _) in enumerate(sizes)]
        for share, (_, size, num) in zip(shares, sizes, strict=True):
            pushed(queue, share, *[16 * size] * num)
        popped(queue, num_popped)
        share = shares[newcomer] if newcomer < len(shares) else a_share("new")
        ahead = queue.work_ahead(share)
        (entry,) = pushed(queue, share, 16)
        before: list[Queued] = []
        while (gone := queue.pop()) not in (None, entry):
            assert gone is not None
            before.append(gone)
        assert ahead == (sum(one.uncached_tokens for one in before), len(before))


class TestWhatWaits:
    def test_is_counted_by_tenant_and_in_all(self, queue: FairQueue) -> None:
        pushed(queue, "a", 100, 200)
        pushed(queue, a_share("a", service_class="batch"), 400)
        pushed(queue, "b", 800)
        assert (len(queue), queue.num_of("a"), queue.num_of("b"), queue.num_of("c")) == (4, 3, 1, 0)
        assert queue.backlog() == {"a": 700, "b": 800}

    def test_is_told_of_a_tenant_s_class(self, queue: FairQueue) -> None:
        queue.push(an_entry("a", 100, cached=160))
        pushed(queue, a_share("a", service_class="batch"), 400)
        assert queue.work_of(a_share("a")) == (116, 1)
        assert queue.work_of(a_share("b")) == (0, 0)

    def test_a_tenant_that_is_gone_is_forgotten(self, queue: FairQueue) -> None:
        def num_lines() -> int:
            return sum(type(thing) is TenantLine for thing in gc.get_objects())

        gc.collect()
        before = num_lines()
        pushed(queue, "always", *[100] * 2000)
        for number in range(1000):
            pushed(queue, f"t{number}", 300)
            popped(queue, 2)
        assert num_lines() - before < 10


class TestShedding:
    FREE, PAID = a_share("f", 1), a_share("p", 4)
    BATCH, PAID_BATCH = a_share("b", 1, "batch"), a_share("q", 4, "batch")

    def test_takes_batch_before_free_and_the_newest_first(self, queue: FairQueue) -> None:
        order = [self.PAID, self.FREE, self.FREE, self.PAID_BATCH, self.BATCH, self.BATCH]
        entries = [entry for share in order for entry in pushed(queue, share, 100)]
        shed = []
        while (victim := queue.newest_below(self.PAID)) is not None:
            shed.append(victim)
            queue.remove(victim.entry_id)
        assert shed == [entries[i] for i in (5, 4, 3, 2, 1)]

    def test_nobody_is_shed_for_an_equal_or_a_lower_one(self, queue: FairQueue) -> None:
        pushed(queue, self.FREE, 100)
        for share in (self.FREE, self.BATCH, self.PAID_BATCH):
            assert queue.newest_below(share) is None


TENANTS = [
    a_share("a", 1),
    a_share("b", 2),
    a_share("c", 4),
    a_share("a", 1, "batch"),
    a_share("d", 4, "batch"),
]
PUSH = st.tuples(
    st.just("push"), st.sampled_from(TENANTS), st.integers(0, 2000), st.sampled_from([0, 0, 160, 1600])
)
POP = st.just(("pop",))
REMOVE = st.tuples(st.just("remove"), st.integers(0, 40))
CHARGE = st.tuples(st.just("charge"), st.sampled_from(TENANTS), st.integers(0, 3000))
REFUND = st.tuples(st.just("refund"), st.integers(0, 40))
OPERATIONS = st.one_of(PUSH, PUSH, PUSH, PUSH, POP, POP, POP, CHARGE, CHARGE, REMOVE, REFUND)

Charges = list[tuple[Charge, ModelCharge]]
"""Of those that left, the last one first."""


def apply(
    operation: tuple[Any, ...], number: int, queue: FairQueue, model: FairQueueModel, charges: Charges
) -> None:
    match operation:
        case ("push", share, uncached, cached):
            entry = Queued(f"e{number}", share, uncached, cached)
            queue.push(entry)
            model.push(entry)
        case ("pop",):
            entry = queue.pop()
            assert entry == model.pop()
            if entry is not None:
                charges.insert(0, (queue.charge_of(entry), model.charge_of(entry)))
        case ("remove", of):
            entry_id = model.waiting[of % len(model.waiting)].entry_id if model.waiting else "none"
            assert queue.remove(entry_id) == model.remove(entry_id)
        case ("charge", share, tokens):
            queue.charge(share, tokens)
            model.charge(share, tokens)
        case ("refund", of) if charges:
            charge, same = charges.pop(of % len(charges))
            queue.refund(charge)
            model.refund(same)


def assert_alike(queue: FairQueue, model: FairQueueModel) -> None:
    waiting = model.waiting
    assert queue.peek() == model.peek()
    assert (queue.peek() is None) == (not waiting), "somebody waits and nobody may go"
    assert len(queue) == len(waiting)
    assert queue.backlog() == model.backlog()
    for share in TENANTS:
        assert queue.num_of(share.tenant_id) == sum(one.share.tenant_id == share.tenant_id for one in waiting)
        assert queue.newest_below(share) == model.newest_below(share)
        assert queue.num_below(share) == sum(one.share.standing < share.standing for one in waiting)


@given(st.sampled_from([64, 512]), st.lists(OPERATIONS, min_size=20, max_size=80))
def test_is_what_the_model_says(quantum: int, history: list[tuple[Any, ...]]) -> None:
    queue, model, charges = FairQueue(quantum), FairQueueModel(quantum), Charges()
    for number, operation in enumerate(history):
        apply(operation, number, queue, model, charges)
        assert_alike(queue, model)
    while model.waiting:
        apply(("pop",), 0, queue, model, charges)
    assert queue.pop() is None
