"""What replicas can do, learned from what they tell, and what it makes of a line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.waiting.decayed_mean import DecayedMean
from cluster.waiting.fleet import Fleet
from cluster.waiting.replica_rates import (
    COLD_PREFILL_TOKENS_PER_S,
    COLD_SEAT_S,
    COLD_SEATS,
    FEW_ENDED,
    MAX_GAP_S,
    TIME_CONSTANT_S,
    ReplicaRates,
)
from engine.counters import EngineCounters
from tenants.queued import Work

SEATS = 16


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
    rates: ReplicaRates,
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
            rates.observe(replica_id, told, start + at)


def fleet(num_replicas: int = 1, *, free: int = 0, part: float = 1.0) -> Fleet:
    return Fleet(num_replicas, num_replicas * SEATS, free, part=part)


def seen_rates() -> ReplicaRates:
    rates = ReplicaRates()
    rates.see(fleet(), 0.0)
    return rates


@pytest.fixture
def rates() -> ReplicaRates:
    return seen_rates()


class TestPrefillRate:
    def test_is_the_cold_value_before_anything_was_measured(self, rates: ReplicaRates) -> None:
        assert rates.prefill_tokens_per_s == COLD_PREFILL_TOKENS_PER_S
        rates.observe("a", counters(0), 0.0)
        assert rates.prefill_tokens_per_s == COLD_PREFILL_TOKENS_PER_S

    @pytest.mark.parametrize("every_s", [0.02, 0.25, 1.0])
    def test_is_what_a_replica_short_of_tokens_prefills_however_often_it_tells(
        self, rates: ReplicaRates, every_s: float
    ) -> None:
        watch(rates, 5000, every_s=every_s)
        assert rates.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)

    def test_follows_a_change_within_a_few_time_constants(self, rates: ReplicaRates) -> None:
        watch(rates, 8000)
        watch(rates, 1000, seconds=3 * TIME_CONSTANT_S, replicas=("b",), start=50.0)
        left = 1000 + 7000 * math.exp(-3)
        assert rates.prefill_tokens_per_s == pytest.approx(left, rel=0.05)

    def test_is_of_one_replica_and_three_of_them_do_not_make_it_forget_faster(self) -> None:
        alone, among = seen_rates(), seen_rates()
        for rates, replicas in ((alone, ("a",)), (among, ("a", "b", "c"))):
            watch(rates, 8000, replicas=replicas)
            watch(rates, 2000, seconds=5, replicas=replicas, start=41.0)
        assert among.prefill_tokens_per_s == pytest.approx(alone.prefill_tokens_per_s, rel=0.02)

    def test_is_of_those_that_are_still_looked_at(self, rates: ReplicaRates) -> None:
        """After two seconds the one that is left is all there is, and counts in full."""
        watch(rates, 8000, replicas=("a", "b", "c"))
        watch(rates, 2000, seconds=20, replicas=("a",), start=41.0)
        left = 6000 * math.exp(-(18 + 2 / 3) / TIME_CONSTANT_S)
        assert rates.prefill_tokens_per_s == pytest.approx(2000 + left, rel=0.02)

    def test_counts_no_cached_tokens(self, rates: ReplicaRates) -> None:
        for tick in range(200):
            told = counters(1000 * tick, cached=9000 * tick, queued=500, running=1)
            rates.observe("a", told, float(tick))
        assert rates.prefill_tokens_per_s == pytest.approx(1000, rel=0.01)

    def test_of_replicas_short_of_seats_is_only_the_least_that_they_could(self, rates: ReplicaRates) -> None:
        watch(rates, 9000)
        watch(rates, 300, running=SEATS, replicas=("b",), start=50.0)
        assert rates.prefill_tokens_per_s == pytest.approx(9000, rel=0.01)

    def test_is_raised_by_whatever_was_prefilled(self, rates: ReplicaRates) -> None:
        watch(rates, 9000, running=SEATS)
        assert rates.prefill_tokens_per_s == pytest.approx(9000, rel=0.01)

    def test_a_long_prompt_counts_over_all_steps_that_compute_it(self, rates: ReplicaRates) -> None:
        """It is counted with its first step and computed sixteen steps later; then nothing comes."""
        for prompt in range(20):
            for step in range(100):
                is_computing = step < 16
                told = counters(32_000 * (prompt + 1), queued=1000 * is_computing, running=1)
                rates.observe("a", told, 10 * prompt + 0.1 * step)
        assert rates.prefill_tokens_per_s == pytest.approx(32_000 / 1.7, rel=0.2)

    def test_a_replica_that_started_anew_takes_nothing_away(self, rates: ReplicaRates) -> None:
        watch(rates, 5000)
        rates.observe("a", counters(0, queued=500, running=4), 40.25)
        assert rates.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)

    def test_what_was_done_in_a_silence_belongs_to_no_rate(self, rates: ReplicaRates) -> None:
        rates.observe("a", counters(0, queued=1), 0.0)
        rates.observe("a", counters(10**9, queued=1), MAX_GAP_S + 0.01)
        assert rates.prefill_tokens_per_s == COLD_PREFILL_TOKENS_PER_S

    def test_stays_as_it_was_while_nothing_is_to_be_done(self, rates: ReplicaRates) -> None:
        watch(rates, 5000)
        watch(rates, 0, seconds=600, queued=0, running=0, replicas=("b",), start=50.0)
        assert rates.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)


class TestPart:
    def test_is_the_whole_until_another_one_is_seen(self) -> None:
        rates = ReplicaRates()
        assert rates.part == 1.0
        rates.see(fleet(part=0.25), 7.0)
        assert rates.part == 0.25

    def test_follows_what_is_seen_by_its_time_constant_however_often_it_is_looked_at(self) -> None:
        for num_looks in (1, 50):
            rates = seen_rates()
            for look in range(1, num_looks + 1):
                rates.see(fleet(part=0.5), TIME_CONSTANT_S * look / num_looks)
            assert rates.part == pytest.approx(0.5 + 0.5 * math.exp(-1))

    def test_stays_while_no_replica_is_there(self, rates: ReplicaRates) -> None:
        rates.see(Fleet(0, 0, 0, part=0.1), 100.0)
        assert rates.part == 1.0


class TestSeats:
    def test_are_held_for_the_cold_time_until_some_have_ended(self, rates: ReplicaRates) -> None:
        assert rates.seat_s == COLD_SEAT_S

    def test_are_held_for_the_mean_of_those_that_ended_of_late(self, rates: ReplicaRates) -> None:
        for number in range(1000):
            rates.ended(2.0 if number % 2 else 4.0, 0.01 * number)
        assert rates.seat_s == pytest.approx(3.0, rel=0.01)

    def test_a_single_long_answer_after_a_pause_does_not_count_for_all(self, rates: ReplicaRates) -> None:
        for number in range(200):
            rates.ended(1.0, 0.1 * number)
        rates.ended(100.0, 600.0)
        assert rates.seat_s < 1 + 99 / FEW_ENDED


class TestTime:
    def test_of_tokens_is_by_the_rate_of_all_replicas(self, rates: ReplicaRates) -> None:
        assert rates.until_turn_s(Work(8000, 3), fleet(2, free=9)) == 8000 / (2 * COLD_PREFILL_TOKENS_PER_S)

    def test_of_seats_is_by_how_fast_all_are_freed(self, rates: ReplicaRates) -> None:
        assert rates.until_turn_s(Work(0, 63), fleet(2)) == 64 * COLD_SEAT_S / (2 * SEATS)
        assert rates.until_turn_s(Work(0, 63), fleet(2, free=60)) == 4 * COLD_SEAT_S / (2 * SEATS)
        assert rates.until_turn_s(Work(0, 63), fleet(2, free=64)) == 0.0

    def test_is_the_longer_of_both_and_not_their_sum(self, rates: ReplicaRates) -> None:
        for_tokens = rates.takes_s(Work(8000, 0), fleet())
        for_seats = rates.takes_s(Work(0, 63), fleet())
        assert rates.takes_s(Work(8000, 63), fleet()) == max(for_tokens, for_seats)

    def test_without_a_replica_is_that_of_one_as_they_were_with_all_seats_free(
        self, rates: ReplicaRates
    ) -> None:
        nobody = Fleet(0, 0, 0)
        rates.see(nobody, 0.0)
        assert rates.until_turn_s(Work(0, SEATS - 1), nobody) == 0
        assert rates.until_turn_s(Work(0, 63), nobody) == (64 - SEATS) * COLD_SEAT_S / SEATS
        assert (
            ReplicaRates().until_turn_s(Work(0, 63), nobody) == (64 - COLD_SEATS) * COLD_SEAT_S / COLD_SEATS
        )

    def test_is_longer_by_what_other_gateways_have(self) -> None:
        """Free seats, too, are theirs as well as this one's."""
        quarter = ReplicaRates()
        quarter.see(fleet(part=0.25), 0.0)
        assert quarter.takes_s(Work(8000, 63), fleet()) == 4 * ReplicaRates().takes_s(Work(8000, 63), fleet())
        for_seats = (63 + 1 - 60 / 4) * COLD_SEAT_S / (2 * SEATS / 4)
        assert quarter.until_turn_s(Work(0, 63), fleet(2, free=60)) == for_seats

    @given(
        tokens=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
        requests=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
        num_replicas=st.integers(1, 8),
    )
    def test_never_falls_with_work_nor_rises_with_replicas(
        self, tokens: tuple[float, float], requests: tuple[int, int], num_replicas: int
    ) -> None:
        rates = ReplicaRates()
        less, more = Work(min(tokens), min(requests)), Work(max(tokens), max(requests))
        assert (
            0
            <= rates.until_turn_s(less, fleet(num_replicas))
            <= rates.until_turn_s(more, fleet(num_replicas))
        )
        assert rates.until_turn_s(more, fleet(num_replicas + 1)) <= rates.until_turn_s(
            more, fleet(num_replicas)
        )


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
