"""The wait of a request: its line, who comes later and goes first, what waits have been of late."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.waiting.first_tokens import COLD_S, NUM_LATER, NUM_SEEN, FirstTokens
from cluster.waiting.fleet import Fleet
from cluster.waiting.replica_rates import COLD_PREFILL_TOKENS_PER_S, COLD_SEAT_S
from cluster.waiting.rivals import FORGOTTEN_S, MOST, Rivals
from cluster.waiting.slowdown import LEAST_S, TIME_CONSTANT_S, Slowdown
from cluster.waiting.slowdown import MOST as MOST_SLOWDOWN
from cluster.waiting.wait_estimate import Wait, WaitEstimator
from tenants.fair_queue import FairQueue
from tenants.queued import Queued, Share
from tests.cluster.waiting_rig import BATCH, FREE, PAID

SEATS = 1000
SECOND = round(COLD_PREFILL_TOKENS_PER_S)
"""Tokens that one replica prefills in a second."""


def fleet(num_replicas: int = 1, *, due: float | None = None) -> Fleet:
    return Fleet(num_replicas, num_replicas * SEATS, num_replicas * SEATS, due)


def a_line(share: Share, seconds: int) -> FairQueue:
    """Work of a tenant, a second each."""
    line = FairQueue()
    for number in range(seconds):
        line.push(Queued(f"{share.tenant_id} {number}", share, SECOND))
    return line


@pytest.fixture
def estimator() -> WaitEstimator:
    return WaitEstimator()


class TestWait:
    def test_is_nothing_in_an_empty_line(self, estimator: WaitEstimator) -> None:
        assert estimator.wait(FairQueue(), PAID, fleet(), 0.0) == Wait(0.0, 0.0, 0.0)

    def test_is_what_stands_before_it_by_what_replicas_can_do(self, estimator: WaitEstimator) -> None:
        assert estimator.wait(a_line(PAID, 6), PAID, fleet(2), 0.0) == Wait(3.0, 3.0, 3.0)

    def test_is_shorter_once_the_next_replica_is_there(self, estimator: WaitEstimator) -> None:
        """12 s of work for one: 4 s alone, and the 8 s that are left in half the time."""
        line = a_line(PAID, 12)
        waits = [estimator.wait(line, PAID, fleet(due=due), 100.0) for due in (104.0, 112.0, 90.0, None)]
        assert [wait.from_now_s for wait in waits] == [4 + 8 / 2, 12, 6, 12]
        assert {wait.drain_s for wait in waits} == {12}

    def test_without_a_replica_begins_when_the_first_one_is_due(self, estimator: WaitEstimator) -> None:
        wait = estimator.wait(a_line(PAID, 3), PAID, Fleet(0, 0, 0, next_replica_s=130.0), 100.0)
        assert wait.from_now_s == 30 + wait.drain_s

    def test_turns_of_a_tenant_are_as_far_apart_as_one_takes(self, estimator: WaitEstimator) -> None:
        assert estimator.apart_s(Queued("r", PAID, 2 * SECOND), fleet(), 0.0) == 2.0

    def test_what_was_predicted_wrong_is_told_and_its_mean_kept(self) -> None:
        told: list[tuple[float, float]] = []
        estimator = WaitEstimator(lambda predicted_s, actual_s: told.append((predicted_s, actual_s)))
        for _ in range(200):
            estimator.told(PAID, Wait(2.0, 2.0, 2.0), 3.0, 0.0)
        assert told == [(2.0, 3.0)] * 200
        assert estimator.mean_error_s == pytest.approx(1.0, abs=0.001)

    def test_grows_with_what_others_take_and_with_how_wrong_it_was(self, estimator: WaitEstimator) -> None:
        line = a_line(FREE, 4)
        for tick in range(100):
            estimator.took(Queued("r", PAID, SECOND // 20), fleet(), 0.1 * tick)
        assert estimator.wait(line, FREE, fleet(), 10.0).line_s == pytest.approx(2 * 4, rel=0.1)
        for _ in range(100):
            estimator.told(FREE, Wait(8.0, 8.0, 8.0), 12.0, 10.0)
        assert estimator.wait(line, FREE, fleet(), 10.0).drain_s == pytest.approx(3 * 4, rel=0.1)
        assert estimator.apart_s(Queued("r", FREE, SECOND), fleet(), 10.0) == pytest.approx(3, rel=0.1)

    def test_turns_of_requests_with_siblings_are_as_far_apart_as_their_seats_take(
        self, estimator: WaitEstimator
    ) -> None:
        apart = [estimator.apart_s(Queued("r", PAID, 1, num_siblings=n), fleet(), 0.0) for n in (1, 8)]
        assert apart[1] == 8 * apart[0] > 0

    def test_siblings_take_a_seat_each_of_those_who_wait_behind(self, estimator: WaitEstimator) -> None:
        waits = []
        for num_siblings in (1, 8):
            line = FairQueue()
            for number in range(10):
                line.push(Queued(f"r{number}", PAID, 1, num_siblings=num_siblings))
            waits.append(estimator.wait(line, PAID, Fleet(1, 16, 0), 0.0).line_s)
        assert waits == [(10 + 1) * COLD_SEAT_S / 16, (80 + 1) * COLD_SEAT_S / 16]

    def test_siblings_are_taken_of_others_time(self, estimator: WaitEstimator) -> None:
        for tick in range(300):
            estimator.took(Queued("r", PAID, 1, num_siblings=8), Fleet(1, 1600, 0), 0.1 * tick)
        assert estimator.wait(a_line(FREE, 4), FREE, fleet(), 30.0).line_s == pytest.approx(
            4 / (1 - 10 * 8 * COLD_SEAT_S / 1600), rel=0.05
        )


class TestTurnBy:
    @staticmethod
    def turn_by_s(estimator: WaitEstimator, share: Share, tokens: int, by_s: float = 110.0) -> float:
        return estimator.turn_by_s(Queued("r", share, tokens), by_s, 100.0)

    def test_leaves_time_for_its_own_prefill(self, estimator: WaitEstimator) -> None:
        assert self.turn_by_s(estimator, PAID, 3 * SECOND) == 107.0

    def test_leaves_as_much_besides_as_first_tokens_took_of_late(self, estimator: WaitEstimator) -> None:
        """Of a prompt of two seconds it came three seconds after the turn: one is for those before it."""
        for _ in range(NUM_LATER + 1):
            estimator.first_token_came(PAID, 2 * SECOND, 3.0)
        assert self.turn_by_s(estimator, PAID, 3 * SECOND) == 106.0
        assert self.turn_by_s(estimator, PAID, 0) == 109.0

    @pytest.mark.parametrize("lower", [FREE, BATCH])
    def test_of_who_goes_first_inside_an_engine_is_not_that_of_who_waits_there(
        self, estimator: WaitEstimator, lower: Share
    ) -> None:
        for _ in range(NUM_SEEN):
            estimator.first_token_came(lower, 0, 4.0)
        assert [self.turn_by_s(estimator, share, 0) for share in (PAID, lower)] == [110.0, 106.0]

    def test_leaves_half_of_the_time_for_waiting(self, estimator: WaitEstimator) -> None:
        assert self.turn_by_s(estimator, PAID, 100 * SECOND) == 105.0
        for _ in range(NUM_SEEN):
            estimator.first_token_came(PAID, 0, 60.0)
        assert self.turn_by_s(estimator, PAID, 0) == 105.0

    @pytest.mark.parametrize("by_s", [100.0, 90.0])
    def test_is_over_if_the_time_is(self, estimator: WaitEstimator, by_s: float) -> None:
        assert self.turn_by_s(estimator, PAID, SECOND, by_s) <= 100.0


class TestFirstTokens:
    def test_come_at_once_until_some_did_not(self) -> None:
        assert FirstTokens().most_s == COLD_S == 0.0

    def test_nearly_all_took_no_longer_than_what_is_reckoned_with(self) -> None:
        first_tokens = FirstTokens()
        for seconds in range(1, NUM_SEEN + 1):
            first_tokens.came(float(seconds))
        assert first_tokens.most_s == NUM_SEEN - NUM_LATER

    def test_few_that_came_late_count_for_nobody_else(self) -> None:
        first_tokens = FirstTokens()
        for number in range(10 * NUM_SEEN):
            first_tokens.came(60.0 if number % NUM_SEEN < NUM_LATER else 1.0)
        assert first_tokens.most_s == 1.0

    def test_what_was_before_the_last_ones_is_forgotten(self) -> None:
        first_tokens = FirstTokens()
        for seconds in (9.0, 0.5):
            for _ in range(NUM_SEEN):
                first_tokens.came(seconds)
        assert first_tokens.most_s == 0.5

    def test_none_came_before_its_turn(self) -> None:
        """A rate that was measured too low makes prompts look longer than they are."""
        first_tokens = FirstTokens()
        for _ in range(NUM_SEEN):
            first_tokens.came(-1.0)
        assert first_tokens.most_s == 0.0


class TestRivals:
    @staticmethod
    def after(part: float, share: Share = PAID, seconds: float = 30.0) -> Rivals:
        """Of replicas of whose time `share` took `part`."""
        rivals = Rivals()
        for tick in range(round(10 * seconds)):
            rivals.took(share, 0.1 * part, 0.1 * tick)
        return rivals

    def test_nobody_else_stretches_nothing(self) -> None:
        assert Rivals().stretch(FREE, 0.0) == 1.0
        assert self.after(0.9).stretch(PAID, 30.0) == 1.0

    def test_what_they_took_of_late_they_go_on_to_take(self) -> None:
        assert self.after(0.6).stretch(FREE, 30.0) == pytest.approx(1 / 0.4, rel=0.05)

    def test_is_known_from_the_first_seconds_on(self) -> None:
        assert self.after(0.6, seconds=2.0).stretch(FREE, 2.0) == pytest.approx(1 / 0.4, rel=0.1)

    def test_no_more_than_their_weight_is_taken(self) -> None:
        assert self.after(0.9).stretch(FREE, 30.0) == 1 + 4
        assert self.after(1.0, FREE).stretch(PAID, 30.0) == 1 + 1 / 4

    def test_batch_takes_nothing_of_interactive_time(self) -> None:
        assert self.after(0.9, BATCH).stretch(PAID, 30.0) == 1.0

    def test_of_batch_interactive_takes_what_it_needs_whatever_its_weight(self) -> None:
        heavy = Share("heavy", 1000, "batch")
        assert self.after(0.8, PAID).stretch(heavy, 30.0) == pytest.approx(5, rel=0.05)
        assert self.after(1.0, PAID).stretch(heavy, 30.0) == pytest.approx(1 / (1 - MOST))

    def test_who_stands_lower_may_be_left_out(self) -> None:
        rivals = self.after(0.5, FREE)
        assert rivals.stretch(PAID, 30.0) == 1.25
        assert rivals.stretch(PAID, 30.0, without_lower=True) == 1.0

    def test_are_forgotten_when_they_take_nothing(self) -> None:
        rivals = self.after(0.6)
        rivals.took(FREE, 0.1, 30.0 + FORGOTTEN_S)
        assert rivals.stretch(FREE, 30.0 + FORGOTTEN_S) == 1.0

    @given(st.lists(st.tuples(st.sampled_from([PAID, FREE, BATCH]), st.floats(0, 3), st.floats(0, 10))))
    def test_the_stretch_is_bounded(self, news: list[tuple[Share, float, float]]) -> None:
        rivals, now = Rivals(), 0.0
        for share, seconds, later_s in news:
            now += later_s
            rivals.took(share, seconds, now)
            for one in (PAID, FREE, BATCH):
                assert 1 <= rivals.stretch(one, now, without_lower=True) <= rivals.stretch(one, now)
                assert rivals.stretch(one, now) <= 1 / (1 - MOST) ** 2 + 1e-6


class TestSlowdown:
    def test_is_actual_by_reckoned_waits_of_the_same_standing(self) -> None:
        slowdown = Slowdown()
        for number in range(100):
            slowdown.told(FREE, 4.0, 10.0, 0.1 * number)
        other_free = Share("other", 1, "interactive")
        assert slowdown.factor(other_free, 10.0) == pytest.approx(2.5, rel=0.02)
        assert slowdown.factor(PAID, 10.0) == 1.0

    def test_goes_back_to_one_while_nothing_is_told(self) -> None:
        slowdown = Slowdown()
        slowdown.told(FREE, 9.0, 29.0, 0.0)
        assert slowdown.factor(FREE, 0.0) == 3.0
        kept = math.exp(-2)
        after = slowdown.factor(FREE, 2 * TIME_CONSTANT_S)
        assert after == pytest.approx((29 * kept + LEAST_S) / (9 * kept + LEAST_S))

    def test_short_lines_teach_nothing(self) -> None:
        slowdown = Slowdown()
        slowdown.told(FREE, LEAST_S - 0.01, 100.0, 0.0)
        assert slowdown.factor(FREE, 0.0) == 1.0

    def test_is_never_less_than_one_and_bounded(self) -> None:
        slowdown = Slowdown()
        slowdown.told(PAID, 10.0, 1.0, 0.0)
        slowdown.told(FREE, 1.0, 10_000.0, 0.0)
        assert (slowdown.factor(PAID, 0.0), slowdown.factor(FREE, 0.0)) == (1.0, MOST_SLOWDOWN)
