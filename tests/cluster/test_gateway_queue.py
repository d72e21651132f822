"""The gateway's queue: who comes in, who is shed or turned away, and when time is over."""

from __future__ import annotations

from random import Random

from cluster.waiting.arrival import Arrival
from cluster.waiting.config import WaitingConfig
from cluster.waiting.fleet import Fleet
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.replica_rates import COLD_PREFILL_TOKENS_PER_S
from cluster.waiting.shedding import Refused
from cluster.waiting.wait_estimate import WaitEstimator
from tenants.fair_queue import Share
from tests.cluster.waiting_rig import BATCH, FREE, PAID, an_arrival

SEATS = 1000
"""So many that only tokens are waited for."""
SECOND = round(COLD_PREFILL_TOKENS_PER_S)
"""Tokens that one replica prefills in a second."""


def a_queue(num_replicas: int = 1, *, due: float | None = None, **settings: float) -> GatewayQueue:
    queue = GatewayQueue(WaitEstimator(), Random(0), WaitingConfig(**settings))  # type: ignore[arg-type]
    queue.see(Fleet(num_replicas, num_replicas * SEATS, num_replicas * SEATS, due), 0.0)
    return queue


def fill(queue: GatewayQueue, share: Share, seconds: int, now: float = 0.0) -> list[str]:
    """Work of a tenant, a second each."""
    ids = [f"{share.tenant_id} {n}" for n in range(seconds)]
    for entry_id in ids:
        assert queue.offer(an_arrival(entry_id, share, SECOND, now=now), now).refused is None
    return ids


def refused(queue: GatewayQueue, arrival: Arrival, now: float = 0.0) -> Refused:
    outcome = queue.offer(arrival, now)
    assert outcome.refused is not None
    assert outcome.shed == ()
    return outcome.refused


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
        queue = a_queue()
        ids = fill(queue, PAID, 3)
        assert queue.next_deadline() == 10.0
        assert queue.next(9.9) is not None
        assert queue.next(10.0) is None
        assert queue.next_deadline() < 10.0  # type: ignore[operator]
        assert (queue.expire(10.0), queue.expire(10.0)) == (ids[1:], [])
        assert (len(queue), queue.next_deadline()) == (0, None)

    def test_who_comes_with_no_time_left_is_not_told_to_come_back(self) -> None:
        arrival = an_arrival("r", now=0.0)
        assert refused(a_queue(), arrival, now=10.0) == (503, "deadline_exceeded", None)

    def test_a_prompt_too_long_for_its_deadline_is_computed_if_nobody_is_before_it(self) -> None:
        queue = a_queue()
        assert queue.offer(an_arrival("long", PAID, 100 * SECOND), 0.0).refused is None
        refused(queue, an_arrival("long, too", PAID, 100 * SECOND))

    def test_predicted_and_actual_waits_are_told(self) -> None:
        told: list[tuple[float, float]] = []
        queue = GatewayQueue(WaitEstimator(lambda *wait: told.append(wait)), Random(0), WaitingConfig())
        queue.see(Fleet(1, SEATS, SEATS), 0.0)
        fill(queue, PAID, 3)
        assert [queue.next(2.0), queue.left("paid 1")] != [None, False]
        queue.expire(10.0)
        assert told == [(0.0, 2.0), (2.0, 10.0)]


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
        refused(queue, an_arrival("early", FREE, 100, now=0.9, is_return=True), 0.9)
        assert queue.offer(an_arrival("equal", PAID, 100, now=0.9), 0.9).refused is None
        assert queue.next(1.0) is not None
        assert queue.offer(an_arrival("later", FREE, 100, now=1.0, is_return=True), 1.0).refused is None

    def test_nobody_pays_for_a_tenant_whose_own_line_is_too_long(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        fill(queue, FREE, 1)
        refused(queue, an_arrival("late", PAID, SECOND))
        assert queue.left("free 0")

    def test_the_check_before_it_refuses_the_same_and_sheds_nobody(self) -> None:
        queue = a_queue(max_waiting=2)
        fill(queue, FREE, 2)
        assert queue.check(an_arrival("paid", PAID), 0.0) is None
        told = queue.check(an_arrival("free", FREE), 0.0)
        assert told is not None
        assert told.code == "overloaded"
        assert len(queue) == 2


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
        elsewhere = an_arrival("told elsewhere", PAID, SECOND, now=at, is_return=True)
        assert queue.offer(elsewhere, at).refused is None

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
        for number in range(3):
            refused(queue, an_arrival(f"r{number}", PAID, 100))
        for _ in range(3):
            queue.next(0.0)
        refused(queue, an_arrival("r", PAID, 100))
        fill(queue, FREE, 2, now=1.5)
        assert queue.offer(an_arrival("s", PAID, 100, now=1.5), 1.5) == (None, ())

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

    def test_are_forgotten_when_nobody_comes(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 10)
        for number in range(30):
            refused(queue, an_arrival(f"r{number}", PAID, SECOND))
        assert queue.num_promised == 30
        queue.check(an_arrival("r", PAID, now=200.0), 200.0)
        assert queue.num_promised == 0


class TestService:
    def test_what_others_served_takes_a_tenants_turn(self) -> None:
        queue = a_queue()
        other = Share("other", 4, "interactive")
        fill(queue, PAID, 2)
        fill(queue, other, 2)
        queue.served_elsewhere({"paid": 50_000.0, "unknown": 10.0})
        turns = [queue.next(1.0) for _ in range(4)]
        assert [turn.share.tenant_id for turn in turns if turn] == ["other", "other", "paid", "paid"]

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

    def test_the_backlog_is_what_waits(self) -> None:
        queue = a_queue()
        fill(queue, PAID, 2)
        fill(queue, FREE, 1)
        assert (dict(queue.backlog()), len(queue)) == ({"paid": 2 * SECOND, "free": SECOND}, 3)
