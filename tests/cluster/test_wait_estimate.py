"""The wait estimate: rates learned from what replicas tell, and what they make of a line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.waiting.capacity_share import FEW_TOKENS, CapacityShare
from cluster.waiting.decayed_mean import DecayedMean
from cluster.waiting.fleet import Fleet
from cluster.waiting.wait_estimate import (
    COLD_PREFILL_TOKENS_PER_S,
    COLD_SEAT_S,
    COLD_SEATS,
    FEW_ENDED,
    MAX_GAP_S,
    TIME_CONSTANT_S,
    WaitEstimator,
)
from engine.counters import EngineCounters

SEATS = 32


def counters(uncached: int, *, queued: int = 0, running: int = 0, cached: int = 0) -> EngineCounters:
    """`uncached`, `cached`: prompt tokens that were looked up since the replica's start."""
    return EngineCounters(
        requests_running=running,
        requests_waiting=0,
        queued_tokens=queued,
        blocks_total=100,
        blocks_in_use=0,
        blocks_evictable=0,
        kv_waste_ratio=0.0,
        preemptions_total=0,
        prefix_queries_tokens_total=uncached + cached,
        prefix_hits_tokens_total=cached,
    )


def watch(
    estimator: WaitEstimator,
    tokens_per_s: float,
    *,
    seconds: float = 40.0,
    every_s: float = 0.25,
    queued: int = 500,
    running: int = 4,
    replicas: tuple[str, ...] = ("a",),
    start: float = 0.0,
) -> None:
    for tick in range(round(seconds / every_s) + 1):
        at = tick * every_s
        told = counters(round(tokens_per_s * at), queued=queued, running=running)
        for replica_id in replicas:
            estimator.observe(replica_id, told, SEATS, start + at)


@pytest.fixture
def estimator() -> WaitEstimator:
    return WaitEstimator()


def fleet(num_replicas: int = 1, *, free: int = 0, due: float | None = None) -> Fleet:
    return Fleet(num_replicas, num_replicas * SEATS, free, due)


class TestPrefillRate:
    def test_is_the_cold_value_before_anything_was_measured(self, estimator: WaitEstimator) -> None:
        assert estimator.prefill_tokens_per_s == COLD_PREFILL_TOKENS_PER_S
        estimator.observe("a", counters(0), SEATS, 0.0)
        assert estimator.prefill_tokens_per_s == COLD_PREFILL_TOKENS_PER_S

    @pytest.mark.parametrize("every_s", [0.02, 0.25, 1.0])
    def test_is_what_a_replica_short_of_tokens_prefills_however_often_it_tells(
        self, estimator: WaitEstimator, every_s: float
    ) -> None:
        watch(estimator, 5000, every_s=every_s)
        assert estimator.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)

    def test_follows_a_change_within_a_few_time_constants(self, estimator: WaitEstimator) -> None:
        watch(estimator, 8000)
        watch(estimator, 1000, seconds=3 * TIME_CONSTANT_S, replicas=("b",), start=50.0)
        left = 1000 + 7000 * math.exp(-3)
        assert estimator.prefill_tokens_per_s == pytest.approx(left, rel=0.05)

    def test_is_of_one_replica_and_three_of_them_do_not_make_it_forget_faster(self) -> None:
        alone, among = WaitEstimator(), WaitEstimator()
        for estimator, replicas in ((alone, ("a",)), (among, ("a", "b", "c"))):
            watch(estimator, 8000, replicas=replicas)
            watch(estimator, 2000, seconds=5, replicas=replicas, start=41.0)
        assert among.prefill_tokens_per_s == pytest.approx(alone.prefill_tokens_per_s, rel=0.02)

    def test_counts_no_cached_tokens(self, estimator: WaitEstimator) -> None:
        for tick in range(200):
            told = counters(1000 * tick, cached=9000 * tick, queued=500, running=1)
            estimator.observe("a", told, SEATS, float(tick))
        assert estimator.prefill_tokens_per_s == pytest.approx(1000, rel=0.01)

    def test_of_replicas_short_of_seats_is_only_the_least_that_they_could(
        self, estimator: WaitEstimator
    ) -> None:
        watch(estimator, 9000)
        watch(estimator, 300, running=SEATS, replicas=("b",), start=50.0)
        assert estimator.prefill_tokens_per_s == pytest.approx(9000, rel=0.01)

    def test_is_raised_by_whatever_was_prefilled(self, estimator: WaitEstimator) -> None:
        watch(estimator, 9000, running=SEATS)
        assert estimator.prefill_tokens_per_s == pytest.approx(9000, rel=0.01)

    def test_a_long_prompt_counts_over_all_steps_that_compute_it(self, estimator: WaitEstimator) -> None:
        """It is counted with its first step and computed sixteen steps later; then nothing comes."""
        for prompt in range(20):
            for step in range(100):
                is_computing = step < 16
                told = counters(32_000 * (prompt + 1), queued=1000 * is_computing, running=1)
                estimator.observe("a", told, SEATS, 10 * prompt + 0.1 * step)
        assert estimator.prefill_tokens_per_s == pytest.approx(32_000 / 1.7, rel=0.2)

    def test_a_replica_that_started_anew_takes_nothing_away(self, estimator: WaitEstimator) -> None:
        watch(estimator, 5000)
        watch(estimator, 5000, start=40.25)
        assert estimator.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)

    def test_what_was_done_in_a_silence_belongs_to_no_rate(self, estimator: WaitEstimator) -> None:
        estimator.observe("a", counters(0, queued=1), SEATS, 0.0)
        estimator.observe("a", counters(10**9, queued=1), SEATS, MAX_GAP_S + 0.01)
        assert estimator.prefill_tokens_per_s == COLD_PREFILL_TOKENS_PER_S

    def test_stays_as_it_was_while_nothing_is_to_be_done(self, estimator: WaitEstimator) -> None:
        watch(estimator, 5000)
        watch(estimator, 0, seconds=600, queued=0, running=0, replicas=("b",), start=50.0)
        assert estimator.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)


class TestSeats:
    def test_are_held_for_the_cold_time_until_some_have_ended(self, estimator: WaitEstimator) -> None:
        assert estimator.seat_s == COLD_SEAT_S

    def test_are_held_for_the_mean_of_those_that_ended_of_late(self, estimator: WaitEstimator) -> None:
        for number in range(1000):
            estimator.ended(2.0 if number % 2 else 4.0, 0.01 * number)
        assert estimator.seat_s == pytest.approx(3.0, rel=0.01)

    def test_a_single_long_answer_after_a_pause_does_not_count_for_all(
        self, estimator: WaitEstimator
    ) -> None:
        for number in range(200):
            estimator.ended(1.0, 0.1 * number)
        estimator.ended(100.0, 600.0)
        assert estimator.seat_s < 1 + 99 / FEW_ENDED


class TestWait:
    def test_is_nothing_if_nothing_goes_before_and_a_seat_is_free(self, estimator: WaitEstimator) -> None:
        assert estimator.wait_s(0, 0, fleet(free=1), now=0.0) == 0.0

    def test_for_tokens_is_what_goes_before_by_the_rate_of_all_replicas(
        self, estimator: WaitEstimator
    ) -> None:
        assert estimator.wait_s(8000, 3, fleet(2, free=9), now=0.0) == 8000 / (2 * COLD_PREFILL_TOKENS_PER_S)

    def test_for_a_seat_is_by_how_fast_all_seats_are_freed(self, estimator: WaitEstimator) -> None:
        waits = estimator.wait_s(0, 63, fleet(2), now=0.0)
        assert waits == 64 * COLD_SEAT_S / (2 * SEATS)
        assert estimator.wait_s(0, 63, fleet(2, free=64), now=0.0) == 0.0

    def test_is_the_longer_of_both_not_their_sum(self, estimator: WaitEstimator) -> None:
        for_tokens = estimator.wait_s(8000, 0, fleet(free=9), now=0.0)
        for_a_seat = estimator.wait_s(0, 63, fleet(), now=0.0)
        assert estimator.wait_s(8000, 63, fleet(), now=0.0) == max(for_tokens, for_a_seat)

    def test_is_shorter_once_the_next_replica_is_there(self, estimator: WaitEstimator) -> None:
        """12 s of work for one: 4 s alone, and the 8 s that are left in half the time."""
        tokens = 12 * COLD_PREFILL_TOKENS_PER_S
        assert estimator.wait_s(tokens, 0, fleet(free=1, due=104.0), now=100.0) == pytest.approx(4 + 8 / 2)
        assert estimator.wait_s(tokens, 0, fleet(free=1, due=112.0), now=100.0) == pytest.approx(12)
        assert estimator.wait_s(tokens, 0, fleet(free=1, due=90.0), now=100.0) == pytest.approx(6)

    def test_without_a_replica_begins_when_the_first_one_is_due(self, estimator: WaitEstimator) -> None:
        nobody = Fleet(0, 0, 0, next_replica_s=130.0)
        assert estimator.drain_s(4000, 63, nobody) == 64 * COLD_SEAT_S / COLD_SEATS
        assert estimator.wait_s(4000, 63, nobody, now=100.0) == 30 + 64 * COLD_SEAT_S / COLD_SEATS

    @given(
        tokens=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
        requests=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
        num_replicas=st.integers(0, 8),
        due=st.none() | st.floats(0, 300),
    )
    def test_never_falls_with_what_goes_before_nor_rises_with_replicas(
        self, tokens: tuple[float, float], requests: tuple[int, int], num_replicas: int, due: float | None
    ) -> None:
        estimator = WaitEstimator()
        less = estimator.wait_s(min(tokens), min(requests), fleet(num_replicas, due=due), 0.0)
        more = estimator.wait_s(max(tokens), max(requests), fleet(num_replicas, due=due), 0.0)
        assert 0 <= less <= more
        helped = estimator.wait_s(max(tokens), max(requests), fleet(num_replicas + 1, due=due), 0.0)
        assert helped <= more + 1e-9

    def test_what_was_predicted_wrong_is_told_and_its_mean_kept(self) -> None:
        told: list[tuple[float, float]] = []
        estimator = WaitEstimator(lambda predicted_s, actual_s: told.append((predicted_s, actual_s)))
        for _ in range(200):
            estimator.told(2.0, 3.0)
        assert told == [(2.0, 3.0)] * 200
        assert estimator.mean_error_s == pytest.approx(1.0, abs=0.001)


class TestShareOfCapacity:
    def test_is_all_of_it_until_others_are_heard_of(self) -> None:
        share = CapacityShare()
        share.served(10_000, 0, 1.0, is_waiting=True)
        assert share.value == 1.0

    def test_is_the_part_that_this_gateway_got_while_somebody_waited(self) -> None:
        share = CapacityShare()
        for tick in range(600):
            share.served(1000, 3000, 0.1 * tick, is_waiting=True)
        assert share.value == pytest.approx(0.25, abs=0.01)

    def test_goes_back_to_all_of_it_while_nobody_waits(self) -> None:
        share = CapacityShare()
        share.served(1000, 99_000, 0.0, is_waiting=True)
        assert share.value < 0.05
        for tick in range(600):
            share.served(10, 5000, 0.1 * tick, is_waiting=False)
        assert share.value > 0.99

    def test_lengthens_the_wait(self, estimator: WaitEstimator) -> None:
        alone = estimator.wait_s(9000, 0, fleet(free=1), 0.0)
        estimator.share.served(0, FEW_TOKENS, 0.0, is_waiting=True)
        assert estimator.wait_s(9000, 0, fleet(free=1), 0.0) == 2 * alone


class TestDecayedMean:
    def test_fading_alone_changes_nothing(self) -> None:
        mean = DecayedMean(7.0, 1.0)
        for _ in range(10_000):
            mean.fade(0.5)
        assert mean.value == pytest.approx(7.0)

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100), st.floats(0, 10)), max_size=50))
    def test_stays_within_what_it_was_told(self, news: list[tuple[float, float, float]]) -> None:
        mean = DecayedMean(50.0, 1.0)
        for factor, value, weight in news:
            mean.fade(factor)
            mean.add(value * weight, weight)
        assert min([50.0, *(value for _, value, _ in news)]) - 1e-6 <= mean.value
        assert mean.value <= max([50.0, *(value for _, value, _ in news)]) + 1e-6
