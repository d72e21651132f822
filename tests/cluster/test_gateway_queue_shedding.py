"""The gateway's queue: who has to go, or to yield, for whom."""

from __future__ import annotations

from tenants.fair_queue import Share
from tests.cluster.queue_builders import SECOND, a_queue, fill, refused
from tests.cluster.waiting_rig import BATCH, FREE, PAID, an_arrival

HOBBY = Share("hobby", 1, "interactive")
"""As light as free, and nobody of it was told to come."""


class TestShedding:
    def test_takes_batch_first_then_the_lightest_the_newest_first_and_only_as_many_as_it_must(self) -> None:
        queue = a_queue(max_waiting=6)
        fill(queue, BATCH, 2)
        fill(queue, FREE, 2)
        fill(queue, PAID, 2)
        taken = []
        for number in range(4):
            outcome = queue.offer(an_arrival(f"more {number}", PAID, 100), 0.0)
            assert outcome.refused is None
            taken += [shed.entry_id for shed in outcome.shed]
        assert taken == ["nightly 1", "nightly 0", "free 1", "free 0"]
        assert refused(queue, an_arrival("one too many", PAID, 100)).code == "overloaded"

    def test_whoever_is_shed_is_told_when_to_come_back_and_waits_no_more(self) -> None:
        queue = a_queue(max_waiting=2)
        fill(queue, FREE, 2)
        (shed,) = queue.offer(an_arrival("r", PAID, 100), 0.0).shed
        assert (shed.told.status, shed.told.code) == (503, "overloaded")
        assert shed.told.retry_after_s is not None
        assert not queue.left(shed.entry_id)
        assert queue.num_promised == 1

    def test_whoever_is_shed_is_not_told_to_come_back_before_those_above_have_room(self) -> None:
        queue = a_queue(max_waiting=9)
        fill(queue, FREE, 1)
        fill(queue, PAID, 8)
        (shed,) = queue.offer(an_arrival("r", PAID, 100), 0.0).shed
        assert shed.told.retry_after_s == 6, "two thirds of the eight seconds that they take"

    def test_an_arrival_late_by_others_that_stand_lower_takes_their_place(self) -> None:
        """Nine seconds of its own and four that free has a part in: with them it is late."""
        queue = a_queue()
        fill(queue, FREE, 4)
        fill(queue, PAID, 9)
        outcome = queue.offer(an_arrival("r", PAID, 200), 0.0)
        assert outcome.refused is None
        assert {shed.entry_id for shed in outcome.shed} <= {f"free {n}" for n in range(4)}
        assert outcome.shed

    def test_who_stands_lower_yields_at_the_door_for_a_while(self) -> None:
        queue = a_queue(max_waiting=3)
        fill(queue, FREE, 1)
        fill(queue, PAID, 2)
        assert len(queue.offer(an_arrival("r", PAID, 100), 0.0).shed) == 1
        assert queue.next(0.0) is not None
        refused(queue, an_arrival("early", FREE, 100, now=0.9), 0.9)
        assert queue.offer(an_arrival("equal", PAID, 100, now=0.9), 0.9).refused is None
        assert queue.next(1.0) is not None
        assert queue.offer(an_arrival("later", HOBBY, 100, now=1.0), 1.0).refused is None

    def test_nobody_pays_for_a_tenant_whose_own_line_is_too_long(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        fill(queue, FREE, 1)
        refused(queue, an_arrival("late", PAID, SECOND))
        assert queue.left("free 0")

    def test_nobody_is_shed_for_one_whose_place_is_kept_for_who_was_told_to_come(self) -> None:
        queue = a_queue(max_waiting=4)
        fill(queue, PAID, 4)
        at = float(refused(queue, an_arrival("told", PAID, 100)).retry_after_s or 0)
        queue.next(0.0)
        fill(queue, FREE, 1)
        refused(queue, an_arrival("unannounced", PAID, 100))
        outcome = queue.offer(an_arrival("told", PAID, 100, now=at), at)
        assert outcome.refused is None
        assert [shed.entry_id for shed in outcome.shed] == ["free 0"]

    def test_nobody_is_shed_for_one_that_yields_itself(self) -> None:
        queue = a_queue(max_waiting=3)
        fill(queue, BATCH, 2)
        fill(queue, PAID, 1)
        assert len(queue.offer(an_arrival("paid", PAID, 100), 0.0).shed) == 1
        refused(queue, an_arrival("free", FREE, 100, now=0.9), 0.9)
        outcome = queue.offer(an_arrival("later", HOBBY, 100, now=1.0), 1.0)
        assert [shed.entry_id for shed in outcome.shed] == ["nightly 0"]

    def test_where_only_those_to_come_would_make_it_late_nobody_is_shed_but_they_yield(self) -> None:
        """Its own line takes eight seconds, and ten beside a tenant that was served all the time."""
        queue = a_queue()
        fill(queue, FREE, 9)
        for _ in range(8):
            queue.next(0.0)
        fill(queue, PAID, 8)
        refused(queue, an_arrival("late", PAID, SECOND))
        refused(queue, an_arrival("lower", FREE, 10, now=0.9, is_return=True), 0.9)
        assert queue.offer(an_arrival("later", FREE, 10, now=1.0, is_return=True), 1.0) == (None, ())

    def test_the_check_before_it_refuses_the_same_and_sheds_nobody(self) -> None:
        queue = a_queue(max_waiting=2)
        fill(queue, FREE, 2)
        assert queue.check(an_arrival("paid", PAID), 0.0) is None
        told = queue.check(an_arrival("free", FREE), 0.0)
        assert told is not None
        assert told.code == "overloaded"
        assert len(queue) == 2

    def test_the_check_before_it_makes_nobody_yield(self) -> None:
        queue = a_queue(max_waiting=2)
        fill(queue, FREE, 2)
        assert queue.check(an_arrival("paid", PAID), 0.0) is None
        assert queue.next(0.0) is not None
        assert queue.offer(an_arrival("free", FREE, is_return=True), 0.0).refused is None
