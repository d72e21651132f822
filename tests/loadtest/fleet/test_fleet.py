"""The fleet in virtual time: requests come through whole, in the time that steps and links take."""

from __future__ import annotations

from collections import Counter

import pytest

from cluster.autoscaling.capacity import CapacityEstimate
from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Autoscaler, Decision, FleetView, ScaleLimits
from cluster.waiting.config import WaitingConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.figures import hit_rate, rejected
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.run import FleetRun
from loadtest.fleet.traffic import ClosedLoopTraffic, OpenLoopTraffic, Stage
from tenants.terms import Limits
from tests.loadtest.fleet.small import STEP_S, a_config, prompts_of


def run(config: FleetConfig, *stages: tuple[float, float]) -> FleetRun:
    """One tenant's open loop: (requests a second, seconds)."""
    fleet = VirtualFleet(config)
    fleet.add(OpenLoopTraffic(prompts_of(), [Stage(*stage) for stage in stages]))
    return fleet.run()


def test_a_lone_request_takes_its_steps_and_the_ways_there_and_back() -> None:
    fleet = VirtualFleet(a_config(link_delay_s=0.01))
    fleet.come(1.0, prompts_of().make)
    (call,) = fleet.run().calls
    times = [at - 1.0 for at in call.record.token_times]
    assert times == pytest.approx([0.02 + STEP_S * step for step in range(1, 9)])


def test_every_ask_ends_once_and_whole() -> None:
    outcome = run(a_config(num_gateways=2), (12.0, 10.0))
    assert outcome.num_open == 0
    assert all(call.record.is_ok and call.record.output_tokens == 8 for call in outcome.calls)
    assert max(Counter(call.ask_number for call in outcome.calls).values()) == 1


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    once, again, other = (run(a_config(seed=seed), (30.0, 5.0)) for seed in (1, 1, 2))
    assert once.calls == again.calls
    assert once.calls != other.calls


def test_as_many_replicas_as_there_are_share_the_work() -> None:
    outcome = run(a_config(num_replicas=4), (30.0, 5.0))
    assert len({call.record.replica for call in outcome.calls}) == 4


def test_who_asks_for_more_than_can_be_done_in_time_is_told_when_to_come_back() -> None:
    outcome = run(a_config(waiting=WaitingConfig(interactive_deadline_s=1.0)), (60.0, 5.0))
    assert rejected(outcome.calls).get("503 overloaded", 0) > 0
    waited = [wait.actual_s for wait in outcome.waits]
    assert max(waited) <= 1.0 + 1e-9


def test_a_common_beginning_is_computed_once_by_each_replica_and_then_cached() -> None:
    fleet = VirtualFleet(a_config())
    source = prompts_of(shared_tokens=640, own_tokens=(32, 32))
    fleet.add(ClosedLoopTraffic(lambda number: source.make(number) if number < 40 else None, 2))
    assert hit_rate(fleet.run().calls) >= 0.95 * 640 / 672 * 38 / 40


async def test_ledger_and_engines_count_the_same_tokens() -> None:
    customer = Customer("counted", limits=Limits(requests_per_min=100_000))
    fleet = VirtualFleet(a_config(num_gateways=2))
    fleet.add(OpenLoopTraffic(prompts_of(customer, shared_tokens=320), [Stage(12.0, 10.0)]))
    records = [call.record for call in fleet.run().calls]
    (row,) = await fleet.ledger.usage("counted", "1970-01-01", "1970-01-01")
    assert row.requests == len(records)
    assert row.prompt_tokens == sum(record.prompt_tokens for record in records)
    assert row.completion_tokens == sum(record.output_tokens for record in records)
    assert row.cached_tokens == sum(record.cached_tokens for record in records) > 0


def test_clients_that_hang_up_try_twice_more_and_hold_no_seats() -> None:
    fleet = VirtualFleet(a_config(num_replicas=1))
    impatient = prompts_of(timeout_s=0.3, output_tokens=(1000, 1000))
    for _ in range(8):
        fleet.come(0.0, impatient.make)
    fleet.come(6.0, prompts_of(Customer("late")).make)
    outcome = fleet.run()
    statuses = Counter((call.tries, call.record.status) for call in outcome.of("tenant"))
    assert statuses == {(0, "timeout"): 8, (1, "timeout"): 8, (2, "timeout"): 8}
    (late,) = outcome.of("late")
    assert late.record.ttft_s is not None
    assert late.record.ttft_s < 3 * STEP_S


def test_limits_hold_for_all_gateways_together_and_a_gateway_that_is_cut_lets_its_share_in() -> None:
    limits = Limits(requests_per_min=60, burst_s=10)
    admitted = []
    for cut_for_s in (0.0, 20.0):
        fleet = VirtualFleet(a_config(num_gateways=2), max_retries=0)
        fleet.add(OpenLoopTraffic(prompts_of(Customer("limited", limits=limits)), [Stage(8.0, 20.0)]))
        fleet.gateways[1].limits.cut(cut_for_s)
        admitted.append(sum(call.record.is_ok for call in fleet.run().calls))
    assert 28 <= admitted[0] <= 30, "20 s and a burst of 10"
    assert admitted[0] < admitted[1] <= 45, "and half of that again"


def test_a_fleet_grows_by_its_cold_start_and_shrinks_by_draining() -> None:
    limits = ScaleLimits(1, 3, scale_down_delay_s=10.0)
    config = a_config(
        num_replicas=1,
        scaler=lambda: Autoscaler(limits, CapacityEstimate(1000.0)),
        cold_start_s=dict.fromkeys(
            ("node", "import", "weights", "KV pool", "warm-up", "golden", "join"), 1.0
        ),
    )
    outcome = run(config, (4.0, 10.0), (20.0, 30.0), (2.0, 60.0))
    since = sorted(served.since for served in outcome.served.values())
    assert since[0] == 0.0
    assert 17.0 <= since[1] <= 29.0, "seconds to see it, and seven to start"
    assert sum(served.until is not None for served in outcome.served.values()) >= 1
    assert all(call.record.is_ok or call.record.is_rejected for call in outcome.calls), "and nothing is lost"


class FewerSoon:
    """Orders one replica after a second."""

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        return Decision(1 if now >= 1.0 else fleet.target, "")


def test_a_replica_that_leaves_ends_what_it_has_begun() -> None:
    fleet = VirtualFleet(a_config(scaler=FewerSoon), max_retries=0)
    long = prompts_of(output_tokens=(40, 40))
    for _ in range(6):
        fleet.come(0.0, long.make)
    outcome = fleet.run()
    assert Counter(call.record.status for call in outcome.calls) == {"ok": 6}
    ended = [call.record.finished_at for call in outcome.calls if call.record.replica == "replica-1"]
    assert min(ended) > (outcome.served["replica-1"].until or 0.0) > 0.0


def test_a_stage_of_a_start_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="no stage lunch"):
        a_config(cold_start_s={"lunch": 1.0})
