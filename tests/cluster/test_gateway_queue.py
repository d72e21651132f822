"""The gateway's queue: who comes in or is turned away, whose turn it is, and when time is over."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from random import Random

from cluster.served_elsewhere import FlowService
from cluster.waiting.config import WaitingConfig
from cluster.waiting.first_tokens import NUM_SEEN
from cluster.waiting.fleet import Fleet
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.wait_estimate import WaitEstimator
from tenants.fair_queue import Share
from tests.cluster.queue_builders import FLEET, SEATS, SECOND, a_queue, fill, refused
from tests.cluster.waiting_rig import BATCH, FREE, PAID, an_arrival


def learn_after_turn(queue: GatewayQueue, seconds: float) -> None:
    """From a turn to the first token."""
    for _ in range(NUM_SEEN):
        queue.estimator.first_token_came(PAID, 0, seconds)


class TestDeadlines:
    def test_a_request_whose_turn_comes_in_time_comes_in_the_next_is_told_when_to_come_back(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        told = refused(queue, an_arrival("late", PAID, SECOND))
        assert (told.status, told.code, told.retry_after_s) == (503, "overloaded", 8)

    def test_who_may_wait_longer_comes_in_where_others_do_not(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        assert queue.offer(an_arrival("patient", BATCH, SECOND), 0.0).refused is None
        refused(queue, an_arrival("hurried", Share("other", 4, "interactive"), SECOND, timeout_s=0.5))

    def test_expired_work_never_gets_its_turn_and_is_told_once(self) -> None:
        """Each of them needs a second for its prompt, and is to have its first token within ten."""
        queue = a_queue()
        ids = fill(queue, PAID, 3)
        assert queue.next_deadline() == 9.0
        assert queue.next(8.9) is not None
        assert queue.next(9.0) is None
        assert queue.next_deadline() < 9.0  # type: ignore[operator]
        assert (queue.expire(9.0), queue.expire(9.0)) == (ids[1:], [])
        assert (len(queue), queue.next_deadline()) == (0, None)

    def test_who_comes_with_no_time_left_is_not_told_to_come_back(self) -> None:
        arrival = an_arrival("r", now=0.0)
        assert refused(a_queue(), arrival, now=10.0) == (503, "deadline_exceeded", None)

    def test_who_had_its_turn_in_time_but_no_first_token_is_turned_away(self) -> None:
        """Of late these came two seconds after the turn."""
        told = []
        for after_turn_s in (0.0, 2.0):
            queue = a_queue()
            learn_after_turn(queue, after_turn_s)
            fill(queue, PAID, 7)
            told.append(queue.offer(an_arrival("r", PAID, 2 * SECOND), 0.0).refused)
        assert told[0] is None
        assert told[1] is not None
        assert (told[1].status, told[1].code) == (503, "overloaded")

    def test_who_can_have_no_first_token_in_time_any_more_never_gets_its_turn(self) -> None:
        queue = a_queue()
        learn_after_turn(queue, 2.0)
        for number in range(2):
            assert queue.offer(an_arrival(f"r{number}", PAID, 0), 0.0).refused is None
        assert queue.next_deadline() == 8.0
        assert queue.next(7.9) is not None
        assert queue.next(8.0) is None
        assert queue.expire(8.0) == ["r1"]

    def test_however_slow_all_was_a_request_that_nobody_is_before_is_let_in(self) -> None:
        queue = a_queue()
        learn_after_turn(queue, 60.0)
        assert queue.offer(an_arrival("r", PAID, 10), 0.0).refused is None
        assert queue.next_deadline() == 5.0

    def test_a_prompt_too_long_for_its_deadline_is_computed_if_nobody_is_before_it(self) -> None:
        queue = a_queue()
        assert queue.offer(an_arrival("long", PAID, 100 * SECOND), 0.0).refused is None
        refused(queue, an_arrival("long, too", PAID, 100 * SECOND))

    def test_what_may_be_cached_of_a_prompt_makes_it_late_only_once_it_was_looked_up(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 6)
        long = an_arrival("long", PAID, 4 * SECOND + 1)
        assert queue.check(long, 0.0) is None
        cached = replace(long, uncached_tokens=SECOND, cached_tokens=3 * SECOND + 1)
        assert deepcopy(queue).offer(cached, 0.0).refused is None
        refused(queue, long)

    def test_predicted_and_actual_waits_are_told(self) -> None:
        told: list[tuple[float, float]] = []
        queue = GatewayQueue(WaitEstimator(lambda *wait: told.append(wait)), Random(0), WaitingConfig())
        queue.see(Fleet(1, SEATS, SEATS), 0.0)
        fill(queue, PAID, 3)
        assert [queue.next(2.0), queue.left("paid 1")] != [None, False]
        queue.expire(9.0)
        assert told == [(0.0, 2.0), (2.0, 9.0)]


class TestTurns:
    def test_who_fits_nowhere_waits_and_holds_up_its_own_tenant_only(self) -> None:
        queue = a_queue()
        ids = fill(queue, PAID, 2)
        assert queue.next(1.0, lambda entry: entry.entry_id != ids[0]) is None
        (other,) = fill(queue, Share("other", 4, "interactive"), 1)
        turns = [queue.next(1.0, lambda entry: entry.entry_id != ids[0]), queue.next(1.0), queue.next(1.0)]
        assert [turn.entry_id for turn in turns if turn] == [other, *ids]


class TestCaps:
    def test_a_tenants_own_is_429_and_sheds_nobody(self) -> None:
        queue = a_queue()
        fill(queue, BATCH, 1)
        for number in range(3):
            arrival = an_arrival(str(number), PAID, 100, max_queue_len=3)
            assert queue.offer(arrival, 0.0).refused is None
        told = refused(queue, an_arrival("r", PAID, 100, max_queue_len=3))
        assert (told.status, told.code) == (429, "queue_full")
        assert told.retry_after_s is not None

    def test_while_no_replica_takes_work_fewer_are_held(self) -> None:
        queue = a_queue(0, due=60.0, max_held=3)
        for number in range(3):
            assert queue.offer(an_arrival(str(number), PAID, 10), 0.0).refused is None
        told = refused(queue, an_arrival("r", PAID, 10))
        assert told.retry_after_s is not None
        assert 60 <= told.retry_after_s <= 67


class TestNoReplica:
    def test_requests_are_held_in_order_past_their_deadline_until_one_comes(self) -> None:
        queue = a_queue(0, due=90.0)
        ids = [f"r{n}" for n in range(5)]
        for number, entry_id in enumerate(ids):
            arrival = an_arrival(entry_id, PAID, 100, now=float(number))
            assert queue.offer(arrival, float(number)).refused is None
        assert queue.expire(89.0) == []
        queue.see(Fleet(1, SEATS, SEATS), 90.0)
        released = [queue.next(95.0) for _ in ids]
        assert [arrival.entry_id for arrival in released if arrival] == ids

    def test_whose_answer_could_not_come_in_time_is_not_held(self) -> None:
        queue = a_queue(0, due=90.0)
        refused(queue, an_arrival("r", PAID, 100, timeout_s=60.0))
        assert queue.offer(an_arrival("s", PAID, 100, timeout_s=120.0), 0.0).refused is None
        assert queue.expire(120.0) == ["s"]


class TestPromises:
    def test_the_next_one_turned_away_is_told_a_later_time(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        told = [refused(queue, an_arrival(f"r{n}", PAID, 2 * SECOND)).retry_after_s for n in range(20)]
        assert told[0] < told[5] < told[10] < told[15]  # type: ignore[operator]
        until_s = 10 - 10 / 3 + 20
        assert until_s <= told[10] <= 1.1 * until_s + 1  # type: ignore[operator]

    def test_who_comes_when_told_gets_in_before_who_comes_unannounced(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        told = [refused(queue, an_arrival(f"r{n}", PAID, SECOND)).retry_after_s for n in range(10)]
        for _ in range(6):
            queue.next(5.0)
        at = float(told[0] or 0)
        refused(queue, an_arrival("fresh", PAID, SECOND, now=at), at)
        assert queue.offer(an_arrival("again", PAID, SECOND, now=at, claim=b"r0"), at).refused is None

    def test_who_was_told_elsewhere_gets_in_while_the_line_is_half_empty(self) -> None:
        """The other half is for who was told here."""
        queue = a_queue()
        fill(queue, PAID, 10)
        for number in range(10):
            refused(queue, an_arrival(f"r{number}", PAID, SECOND))
        for _ in range(6):
            queue.next(0.0)
        refused(queue, an_arrival("fresh", PAID, SECOND))
        assert queue.offer(an_arrival("one", PAID, SECOND, is_return=True), 0.0).refused is None
        refused(queue, an_arrival("two", PAID, SECOND, is_return=True))

    def test_who_does_not_wait_as_long_as_it_was_told_takes_no_place_of_who_does(self) -> None:
        """It says that it comes back, and so it does, but before its time."""
        queue = a_queue()
        fill(queue, PAID, 10)
        told = [refused(queue, an_arrival(f"r{n}", PAID, SECOND)).retry_after_s for n in range(10)]
        for _ in range(6):
            queue.next(5.0)
        at = float(told[0] or 0)
        refused(queue, an_arrival("r9", PAID, SECOND, now=at, is_return=True), at)
        assert queue.offer(an_arrival("r0", PAID, SECOND, now=at, is_return=True), at).refused is None

    def test_a_long_prompt_comes_in_if_nobody_waits_whoever_was_told_to_come_later(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        for number in range(10):
            refused(queue, an_arrival(f"r{number}", PAID, SECOND))
        while queue.next(1.0) is not None:
            pass
        assert queue.offer(an_arrival("long", PAID, 6 * SECOND, now=1.0), 1.0).refused is None

    def test_places_that_who_stands_lower_would_have_to_leave_count_as_free(self) -> None:
        queue = a_queue(max_waiting=4)
        fill(queue, PAID, 4)
        refused(queue, an_arrival("told", PAID, 100))
        for _ in range(2):
            queue.next(0.0)
        fill(queue, FREE, 1, now=1.5)
        assert queue.offer(an_arrival("r", PAID, 100, now=1.5), 1.5) == (None, ())
        refused(queue, an_arrival("s", PAID, 100, now=1.5), 1.5)

    def test_who_comes_before_its_time_is_told_the_same_time_again(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        first = refused(queue, an_arrival("r", PAID, SECOND)).retry_after_s or 0
        assert first > 3
        assert refused(queue, an_arrival("r", PAID, SECOND, now=2.0), 2.0).retry_after_s == first - 2
        assert queue.num_promised == 1

    def test_a_short_line_takes_in_whoever_comes(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        for number in range(30):
            refused(queue, an_arrival(f"r{number}", PAID, SECOND))
        while len(queue) > 2:
            queue.next(1.0)
        assert queue.offer(an_arrival("fresh", PAID, 10, now=1.0), 1.0).refused is None

    def test_that_were_not_kept_keep_nobody_else_out(self) -> None:
        """There is room for one more, and half of those who are to come should have come long ago."""
        queue = a_queue(max_waiting=8)
        fill(queue, PAID, 8)
        for number in range(40):
            refused(queue, an_arrival(f"r{number}", PAID, SECOND))
        while queue.next(1.0) is not None:
            pass
        now = 40.0
        for number in range(6):
            back = an_arrival(f"back {number}", PAID, 100, now=now, is_return=True, claim=b"elsewhere")
            assert queue.offer(back, now).refused is None
        assert 10 < queue.num_promised < 30
        assert queue.offer(an_arrival("fresh", PAID, 100, now=now), now).refused is None

    def test_are_forgotten_when_nobody_comes(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        for number in range(30):
            refused(queue, an_arrival(f"r{number}", PAID, SECOND))
        assert queue.num_promised == 30
        queue.see(FLEET, 200.0)
        assert queue.num_promised == 0


class TestService:
    def test_what_others_served_takes_a_tenants_turn(self) -> None:
        queue = a_queue()
        other = Share("other", 4, "interactive")
        fill(queue, PAID, 2)
        fill(queue, other, 2)
        queue.served_elsewhere([FlowService("paid", 50_000.0), FlowService("unknown", 10.0)])
        turns = [queue.next(1.0) for _ in range(4)]
        assert [turn.share.tenant_id for turn in turns if turn] == ["other", "other", "paid", "paid"]

    def test_what_others_served_is_charged_to_its_class(self) -> None:
        queue = a_queue()
        batch = (PAID._replace(service_class="batch"), Share("other", 4, "batch"))
        for share in batch:
            for number in range(2):
                name = f"{share.tenant_id} batch {number}"
                assert queue.offer(an_arrival(name, share, 10, timeout_s=600.0), 0.0).refused is None
        fill(queue, PAID, 2)
        fill(queue, Share("other", 4, "interactive"), 2)
        queue.served_elsewhere([FlowService("paid", 1_000.0, priority=1)])
        turns = [turn.entry_id for _ in range(8) if (turn := queue.next(1.0))]
        assert turns[0] == "paid 0"
        assert turns[4:] == ["other batch 0", "other batch 1", "paid batch 0", "paid batch 1"]

    def test_who_does_not_wait_in_a_class_is_charged_nothing_in_it(self) -> None:
        queue = a_queue()
        other = Share("other", 4, "interactive")
        fill(queue, PAID, 1)
        fill(queue, other, 1)
        queue.served_elsewhere([FlowService("paid", 50_000.0, priority=1)])
        turns = [turn.share for _ in range(2) if (turn := queue.next(1.0))]
        assert turns == [PAID, other]

    def test_output_takes_a_tenants_turn(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 1)
        fill(queue, Share("other", 4, "interactive"), 1)
        queue.served(PAID, 50_000)
        turn = queue.next(1.0)
        assert turn is not None
        assert turn.share.tenant_id == "other"

    def test_the_brown_out_lowers_the_free_while_the_paid_wait_long(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 4)
        assert queue.max_tokens(FREE, 4096) == 4096
        fill(queue, Share("other", 4, "interactive"), 1)
        assert (queue.max_tokens(FREE, 4096), queue.max_tokens(PAID, 4096)) == (256, 4096)
        assert queue.is_brownout
        while queue.next(1.0):
            pass
        assert queue.max_tokens(FREE, 4096) == 4096

    def test_the_brown_out_ends_with_the_line_though_nobody_else_comes(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 5)
        queue.see(FLEET, 0.0)
        assert queue.is_brownout
        while queue.next(1.0):
            pass
        queue.see(FLEET, 1.0)
        assert not queue.is_brownout

    def test_the_backlog_is_what_waits(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 2)
        fill(queue, FREE, 1)
        assert (dict(queue.backlog()), len(queue)) == ({"paid": 2 * SECOND, "free": SECOND}, 3)
