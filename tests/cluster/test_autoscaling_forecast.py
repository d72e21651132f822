"""The load now and some time ahead, and what one replica can do: exact without noise, robust with it."""

from __future__ import annotations

from random import Random

import pytest

from cluster.autoscaling.capacity import (
    COLD_TOKENS_PER_S,
    LEAST_TOKENS_PER_S,
    CapacityEstimate,
    ReplicaRate,
)
from cluster.autoscaling.forecast import NUM_KEPT, LoadForecast


def forecast_of(*samples: float) -> LoadForecast:
    forecast = LoadForecast()
    for now, sample in enumerate(samples):
        forecast.observe(float(now), sample)
    return forecast


class TestLevel:
    def test_too_few_samples_tell_nothing(self) -> None:
        assert forecast_of(*[100.0] * (NUM_KEPT - 1)).level == 0.0
        assert forecast_of(*[100.0] * NUM_KEPT).level == 100.0

    def test_a_step_is_the_level_after_six_seconds(self) -> None:
        assert forecast_of(*[100.0] * 60, *[300.0] * 5).level == pytest.approx(7500 / 65)
        assert forecast_of(*[100.0] * 60, *[300.0] * 6).level == 300.0
        assert forecast_of(*[300.0] * 60, *[100.0] * 6).level == 100.0

    def test_a_tenth_more_is_no_step(self) -> None:
        assert forecast_of(*[100.0] * 60, *[109.0] * 20).level == pytest.approx(102.25)

    def test_a_burst_is_a_burst(self) -> None:
        assert forecast_of(*[100.0] * 60, 5000.0, 5000.0, *[100.0] * 20).level < 300.0

    def test_what_is_older_than_two_minutes_is_forgotten(self) -> None:
        assert forecast_of(*[104.0] * 100, *[100.0] * 120).level == 100.0

    def test_what_it_was_recently_is_told_less_its_error(self) -> None:
        noisy = forecast_of(*[90.0, 110.0] * 20)
        assert noisy.recent == pytest.approx(110 - (120 / 121) ** 0.5 * 10 * (1.57 / 11) ** 0.5)
        assert forecast_of(*[100.0] * 60, *[300.0] * 6).recent == 300.0
        assert forecast_of().recent == 0.0

    def test_the_error_of_the_mean_is_told(self) -> None:
        assert forecast_of(*[90.0, 110.0] * 50).standard_error == pytest.approx(10 / 99**0.5)
        assert forecast_of(100.0).standard_error == 0.0


class TestTrend:
    def test_a_ramp_goes_on(self) -> None:
        ramp = forecast_of(*(1000.0 + 2 * t for t in range(300)))
        assert ramp.expected(90.0) == pytest.approx(1000 + 2 * (299 + 90))

    def test_nobody_doubts_a_rise(self) -> None:
        ramp = forecast_of(*(1000.0 + 2 * t for t in range(300)))
        assert ramp.certain(90.0, doubt=2.0) == ramp.expected(90.0)

    def test_a_level_is_doubted(self) -> None:
        level = forecast_of(*[90.0, 110.0] * 50)
        assert level.certain(90.0, doubt=2.0) == pytest.approx(100 - 2 * level.standard_error)
        assert level.certain(90.0, doubt=1000.0) == 0.0

    def test_it_only_adds(self) -> None:
        """A level that fell is as it is, whatever it was before."""
        fell = forecast_of(*(1000.0 + 2 * t for t in range(300)), *[300.0] * 6)
        assert fell.expected(90.0) == fell.level == 300.0

    def test_a_step_and_noise_are_no_ramp(self) -> None:
        rng = Random(5)
        for samples in (
            [100.0] * 70 + [300.0] * 70,
            [rng.expovariate(0.01) for _ in range(400)],
            [1000.0 - 2 * t for t in range(400)],
        ):
            forecast = forecast_of(*samples)
            assert forecast.expected(90.0) == forecast.level


class TestCapacity:
    def run(self, seconds: int, rate: ReplicaRate, believed: float = COLD_TOKENS_PER_S) -> float:
        capacity = CapacityEstimate(believed)
        for now in range(seconds):
            capacity.observe(float(now), {"a": rate})
        return capacity.tokens_per_s

    def test_what_a_replica_does_it_can_do(self) -> None:
        assert self.run(60, ReplicaRate(2500.0, 9, 0)) == pytest.approx(2500.0, rel=0.001)

    def test_one_short_burst_is_not_what_it_can_do(self) -> None:
        assert self.run(2, ReplicaRate(2500.0, 9, 0)) == COLD_TOKENS_PER_S

    def test_who_has_little_to_do_tells_nothing(self) -> None:
        assert self.run(600, ReplicaRate(100.0, 1, 0)) == COLD_TOKENS_PER_S

    def test_the_stated_value_goes_once_a_replica_was_full_for_a_while(self) -> None:
        assert self.run(14, ReplicaRate(300.0, 9, 5)) > 750.0
        assert self.run(15, ReplicaRate(300.0, 9, 5)) == pytest.approx(300.0, rel=0.07)

    def test_what_was_learned_falls_by_half_in_half_a_minute_while_requests_wait(self) -> None:
        capacity = CapacityEstimate()
        for now in range(600):
            rate = 4000.0 if now < 100 else 300.0
            capacity.observe(float(now), {"a": ReplicaRate(rate, 9, 5)})
            if now == 129:
                assert capacity.tokens_per_s == pytest.approx(2000.0, rel=0.03)
        assert capacity.tokens_per_s == pytest.approx(300.0, rel=0.001)

    def test_the_best_of_those_that_are_full_counts(self) -> None:
        capacity = CapacityEstimate()
        for now in range(300):
            slow, good, idle = ReplicaRate(50.0, 9, 5), ReplicaRate(700.0, 9, 5), ReplicaRate(0.0, 0, 0)
            capacity.observe(float(now), {"slow": slow, "good": good, "idle": idle})
        assert capacity.tokens_per_s == pytest.approx(700.0, rel=0.001)

    def test_one_that_stands_still_does_not_make_it_nothing(self) -> None:
        assert self.run(2000, ReplicaRate(0.0, 1, 1)) == LEAST_TOKENS_PER_S
