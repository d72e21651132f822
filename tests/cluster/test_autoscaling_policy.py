"""How many replicas: exact in virtual time for steps, ramps and spikes; still at constant noisy load."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.autoscaling.capacity import CapacityEstimate, ReplicaRate
from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Autoscaler, Decision, FleetView, ScaleLimits
from tests.cluster.scaling_world import ScalingWorld, noisy

WIDE = ScaleLimits(1, 64, headroom=1.2, scale_down_delay_s=300.0)


@pytest.mark.parametrize(
    ("requests_per_s", "mean_tokens", "seed"),
    [(0.3, 3000, 1), (0.3, 3000, 4), (4, 1000, 1), (100, 100, 0)],
)
def test_an_hour_of_noise_at_a_constant_load_changes_the_direction_once_at_most(
    requests_per_s: float, mean_tokens: float, seed: int
) -> None:
    rng, load = Random(seed), requests_per_s * mean_tokens
    world = ScalingWorld(WIDE, num_replicas=ceil(1.2 * load / 1000))
    world.run(3600, lambda t: noisy(load, mean_tokens, rng))
    assert world.num_turns <= 1


def replica_seconds_short(seed: int, told_s: float | None = None) -> float:
    """What six replicas and those that come lack, while 1000 tokens/s rise to 8000 within 210 s."""
    rng = Random(seed)
    world = ScalingWorld(WIDE, num_replicas=6, cold_start_s=75.0, told_s=told_s)
    short = 0.0
    for _ in range(60 + 210):
        world.run(1, lambda t: noisy(rising(t), 100, rng))
        short += max(0.0, rising(world.now) / 1000 - world.num_serving)
    return short


def rising(t: int) -> float:
    return 1000 + 7000 * max(0, t - 60) / 210


class TestUp:
    def test_a_step_from_3_to_8_is_answered_whole_within_6_seconds(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=4)
        assert world.run(600, lambda t: 3000.0) == []
        assert world.run(300, lambda t: 8000.0) == [(605, 4, 11)]
        assert world.run(600, lambda t: 8000.0) == []

    def test_a_noisy_step_that_cannot_be_served_is_answered_as_fast(self) -> None:
        rng = Random(3)
        world = ScalingWorld(WIDE, num_replicas=4)
        world.run(600, lambda t: noisy(3000, 30, rng))
        first, *more = world.run(300, lambda t: noisy(8000, 30, rng))
        assert (first.at <= 606, first.target >= 10) == (True, True)
        assert all(order.target in (11, 12) for order in more)
        assert world.num_turns == 0

    def test_a_ramp_is_foreseen_by_one_cold_start(self) -> None:
        """3 tokens/s more each second: when a replica is needed, it is there."""
        world = ScalingWorld(WIDE, num_replicas=4)
        world.run(600, lambda t: 3000.0)
        short = []
        for _ in range(1200):
            world.run(1, lambda t: 3000.0 + 3 * (t - 600))
            if world.backlog:
                short.append(world.now)
        assert short == []
        assert world.num_turns == 0
        load = 3000 + 3 * 1200
        assert ceil(1.2 * load / 1000) <= world.target <= ceil(1.2 * (load + 3 * 120) / 1000)

    def test_a_ramp_of_minutes_is_foreseen_through_noise_and_only_by_who_knows_the_cold_start(self) -> None:
        for seed in range(4):
            assert replica_seconds_short(seed) == 0
            assert replica_seconds_short(seed, told_s=0.0) > 40

    def test_a_spike_of_4_seconds_orders_nothing(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=4)
        world.run(600, lambda t: 3000.0)
        assert world.run(900, lambda t: 6000.0 if t < 604 else 3000.0) == []

    def test_a_spike_of_10_seconds_turns_once_and_is_over_after_the_delay(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=4)
        world.run(600, lambda t: 3000.0)
        world.run(900, lambda t: 8000.0 if t < 610 else 3000.0)
        assert world.num_turns == 1
        assert min(order.at for order in world.orders if order.target < order.before) > 600 + 300
        assert world.target == 4

    def test_what_waits_and_will_not_be_drained_in_a_cold_start_is_ordered_for(self) -> None:
        scaler = Autoscaler(WIDE)
        busy = {"a": ReplicaRate(900.0, 8, 4)}
        demand = Demand(900.0, 0.0, 120_000, busy)
        for now in range(10):
            decision = scaler.decide(float(now), demand, FleetView(1, 1, [], 0, 90.0))
        assert decision == Decision(4, "2900 tokens/s expected in 90 s need 4 replica(s)")

    def test_what_those_on_their_way_will_drain_is_not(self) -> None:
        scaler = Autoscaler(WIDE)
        for now in range(10):
            demand = Demand(900.0, 0.0, 60_000, {"a": ReplicaRate(900.0, 8, 4)})
            decision = scaler.decide(float(now), demand, FleetView(2, 1, [10.0], 0, 90.0))
        assert decision == Decision(2, "enough")

    def test_no_more_than_the_operator_allows(self) -> None:
        world = ScalingWorld(WIDE._replace(max_replicas=6), num_replicas=4)
        world.run(60, lambda t: 3000.0)
        world.run(300, lambda t: 20_000.0)
        assert world.target == 6


class TestDoubt:
    """Requests come in bursts of 1000 tokens every 10 s: a mean of 100, known badly."""

    def decide(self, num_waiting: int, shed: float = 0.0) -> Decision:
        scaler = Autoscaler(WIDE, CapacityEstimate(100.0))
        for now in range(40):
            rates = {"a": ReplicaRate(100.0, 4, num_waiting)}
            demand = Demand(0.0 if now % 10 else 1000.0, shed, 0, rates)
            decision = scaler.decide(float(now), demand, FleetView(1, 1, [], 0, 9.0))
        return decision

    def test_holds_while_the_replicas_keep_up(self) -> None:
        assert self.decide(num_waiting=0) == Decision(1, "enough")

    def test_is_none_where_requests_wait_everywhere_second_after_second(self) -> None:
        assert self.decide(num_waiting=3).target == 2

    def test_is_none_where_some_are_shed_second_after_second(self) -> None:
        assert self.decide(num_waiting=0, shed=1.0).target == 2


class TestCapacity:
    def test_stated_twice_as_high_it_is_put_right_under_load(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=2, believed=2000.0)
        world.run(600, lambda t: 3000.0)
        assert world.scaler.tokens_per_s_per_replica == pytest.approx(1000.0, rel=0.01)
        assert world.target in (4, 5)
        assert world.num_turns <= 1

    def test_learned_twice_as_high_it_is_put_right_under_load(self) -> None:
        """Answers become longer, say, and a replica does half of what it did."""
        world = ScalingWorld(WIDE, num_replicas=2, tokens_per_s=2000.0)
        world.run(100, lambda t: 4500.0)
        world.slow_down(1000.0)
        world.run(600, lambda t: 4500.0)
        assert world.scaler.tokens_per_s_per_replica == pytest.approx(1000.0, rel=0.01)
        assert 6 <= world.target <= 8
        assert world.num_turns <= 1

    def test_stated_half_as_high_it_costs_replicas_until_they_show_more(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=4, believed=500.0)
        world.run(900, lambda t: 3000.0)
        assert world.num_turns <= 1
        assert world.target <= 8

    def test_headroom_is_kept(self) -> None:
        for headroom, target in ((1.25, 10), (1.5, 12), (2.0, 16)):
            world = ScalingWorld(WIDE._replace(headroom=headroom), num_replicas=8)
            assert world.run(400, lambda t: 8000.0) == [(5, 8, target)]


class TestDown:
    def test_one_at_a_time_after_the_delay_to_what_its_peak_needs(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=8)
        world.run(600, lambda t: 6000.0)
        orders = world.run(900, lambda t: 2000.0)
        assert [order.target for order in orders] == [7, 6, 5, 4, 3]
        assert orders[0].at == 905

    def test_a_peak_within_the_delay_holds_all_of_it(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=8)
        assert world.run(1800, lambda t: 6000.0 if t % 200 < 20 else 1000.0) == []

    def test_while_one_leaves_or_comes_nobody_is_sent_away(self) -> None:
        limits = WIDE._replace(scale_down_delay_s=5.0)
        for etas, leaving, target in (([], 0, 2), ([3.0], 0, 3), ([], 1, 3)):
            scaler = Autoscaler(limits)
            for now in range(20):
                demand = Demand(100.0, 0.0, 0, {"a": ReplicaRate(100.0, 1, 0)})
                decision = scaler.decide(float(now), demand, FleetView(3, 3, etas, leaving, 9.0))
            assert decision.target == target

    def test_never_below_the_least(self) -> None:
        world = ScalingWorld(WIDE._replace(min_replicas=3), num_replicas=8)
        world.run(2000, lambda t: 10.0)
        assert world.target == 3


class TestGap:
    """Nobody asked for a while: a rollout, say, or a store that was away."""

    def test_the_same_load_before_and_after_moves_nothing(self) -> None:
        world = ScalingWorld(WIDE, num_replicas=4)
        world.run(400, lambda t: 3000.0)
        world.skip(400)
        assert world.run(400, lambda t: 3000.0) == []

    def test_without_demand_the_delay_begins_anew(self) -> None:
        world = ScalingWorld(WIDE._replace(min_replicas=0), num_replicas=1)
        world.run(10, lambda t: 50.0)
        world.skip(400)
        assert world.run(400, lambda t: 0.0) == [(410 + 300, 1, 0)]

    def test_a_short_one_changes_nothing(self) -> None:
        world = ScalingWorld(WIDE._replace(min_replicas=0), num_replicas=1)
        world.run(10, lambda t: 50.0)
        world.skip(4)
        world.run(1, lambda t: 0.0)
        world.skip(4)
        assert world.run(400, lambda t: 0.0) == [(9 + 300, 1, 0)]

    def test_counts_little_for_what_replicas_can_do(self) -> None:
        capacity = CapacityEstimate(1000.0)
        full = {"a": ReplicaRate(1000.0, 8, 4)}
        for now in range(100):
            capacity.observe(float(now), full)
        capacity.observe(500.0, {"a": ReplicaRate(100.0, 8, 4)})
        assert capacity.tokens_per_s == pytest.approx(1000.0 * 0.5 ** (5 / 30))


class TestZero:
    LIMITS = ScaleLimits(0, 4, scale_down_delay_s=60.0)

    def test_the_first_demand_orders_at_once(self) -> None:
        world = ScalingWorld(self.LIMITS, num_replicas=0)
        assert world.run(1000, lambda t: 0.0) == []
        assert world.run(1, lambda t: 5.0) == [(1000, 0, 1)]

    def test_what_is_held_until_then_is_demand_too(self) -> None:
        decision = Autoscaler(self.LIMITS).decide(0.0, Demand(0.0, 0.0, 7, {}), FleetView(0, 0, [], 0, 9.0))
        assert decision == Decision(1, "there is demand again")

    def test_the_last_one_leaves_after_the_delay_without_any_demand(self) -> None:
        world = ScalingWorld(self.LIMITS, num_replicas=1)
        world.run(100, lambda t: 50.0)
        assert world.run(200, lambda t: 0.0) == [(159, 1, 0)]

    def test_an_answer_that_still_runs_is_demand(self) -> None:
        scaler = Autoscaler(self.LIMITS)
        runs = Demand(0.0, 0.0, 0, {"a": ReplicaRate(0.0, 1, 0)})
        for now in range(500):
            assert scaler.decide(float(now), runs, FleetView(1, 1, [], 0, 9.0)).target == 1

    def test_one_that_is_always_there_stays(self) -> None:
        world = ScalingWorld(self.LIMITS._replace(min_replicas=1), num_replicas=1)
        assert world.run(500, lambda t: 0.0) == []


def test_a_fixed_number_is_never_changed() -> None:
    world = ScalingWorld(ScaleLimits(2, 2), num_replicas=2)
    assert world.run(400, lambda t: 50_000.0 if t < 200 else 0.0) == []


@given(
    loads=st.lists(st.floats(0, 50_000), min_size=1, max_size=40),
    hold=st.integers(1, 40),
    least=st.integers(0, 3),
    headroom=st.floats(1, 3),
)
def test_whatever_comes_the_number_is_allowed_and_falls_by_one_and_not_soon_after_it_rose(
    loads: list[float], hold: int, least: int, headroom: float
) -> None:
    limits = ScaleLimits(least, 9, headroom, scale_down_delay_s=30.0)
    world = ScalingWorld(limits, num_replicas=max(1, least), cold_start_s=7.0)
    world.run(hold * len(loads), lambda t: loads[t // hold])
    rose_at = -1e9
    for order in world.orders:
        assert limits.min_replicas <= order.target <= limits.max_replicas
        if order.target > order.before:
            rose_at = order.at
        else:
            assert order.before - order.target == 1
            assert order.at - rose_at >= 7


def test_a_capacity_of_nothing_is_refused_by_nobody_and_asks_for_no_more_than_allowed() -> None:
    scaler = Autoscaler(WIDE, CapacityEstimate(1.0))
    for now in range(10):
        stuck = Demand(500.0, 0.0, 9, {"a": ReplicaRate(0.0, 1, 1)})
        decision = scaler.decide(float(now), stuck, FleetView(1, 1, [], 0, 9.0))
    assert decision.target == WIDE.max_replicas
