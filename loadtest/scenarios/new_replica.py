"""A replica comes into a fleet of two whose prompts mostly begin with one of six long prefixes.

Two seconds later the load is twice what it was, as where replicas are ordered ahead of a demand that grows.
Whatever of the prefixes the new replica has not computed by then, it computes while requests wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.autoscaling.cold_start import STAGES
from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Decision, FleetView
from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.figures import hit_rate, rejected, ttft_curve, ttft_p99_ms
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.run import CallRecord
from loadtest.fleet.traffic import OpenLoopTraffic, Stage
from loadtest.scenarios.scenario import Bound, OnTime, Scenario, ScenarioResult
from loadtest.studies.virtual_engine import StepTime

COMES_S, FIRST_S = 6.0, 5.0
"""When it comes, and for how long it is looked at."""
LOAD = (Stage(20.0, COMES_S + 2.0), Stage(40.0, FIRST_S - 2.0))
SHARING = tuple(f"tenant-{number}" for number in range(6))
SHARED_PART = 0.8
"""Of all requests."""


class OneMore:
    """Orders a third replica when it is time."""

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        return Decision(3 if now >= COMES_S else 2, "it is time")


CONFIG = FleetConfig(
    EngineConfig(num_blocks=4001, max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=1024),
    num_replicas=2,
    step_time=StepTime(base_s=0.02, token_s=0.000_1),
    scaler=OneMore,
    cold_start_s=dict.fromkeys(STAGES, 0.0),
)


def _measure(config: FleetConfig, on_time: OnTime) -> ScenarioResult:
    fleet = VirtualFleet(config, on_time=on_time)
    for tenant_id in SHARING:
        prompts = Prompts(
            Customer(tenant_id), config.seed, shared_tokens=2048, own_tokens=(60, 140), output_tokens=(40, 80)
        )
        fleet.add(OpenLoopTraffic(prompts, _part(SHARED_PART / len(SHARING))))
    others = Prompts(Customer("others"), config.seed, own_tokens=(200, 800), output_tokens=(40, 80))
    fleet.add(OpenLoopTraffic(others, _part(1 - SHARED_PART)))
    run = fleet.run()
    (new,) = (name for name, served in run.served.items() if served.since >= COMES_S)
    first = [call for call in run.calls if 0 <= call.record.sent_at - run.served[new].since < FIRST_S]
    there = [call for call in first if call.record.replica == new]
    sharing = [call for call in there if call.share.tenant_id in SHARING]
    return ScenarioResult(
        {
            "new_requests": len(there),
            "new_sharing_requests": len(sharing),
            "new_hit_rate": hit_rate(there),
            "new_ttft_p50_ms": _median_ms(there),
            "new_ttft_p99_ms": ttft_p99_ms(there),
            "ttft_p99_ms": ttft_p99_ms(first),
        },
        rejected(run.calls),
        {"at the new replica": ttft_curve(there), "everywhere": ttft_curve(first)},
    )


def _part(share: float) -> list[Stage]:
    return [Stage(share * stage.rate, stage.seconds) for stage in LOAD]


def _median_ms(calls: Sequence[CallRecord]) -> float:
    return round(ttft_curve(calls).y[49], 1)


SCENARIO = Scenario(
    summary="A replica comes, and soon twice the load; most prompts begin with one of six long prefixes.",
    bounds=(
        Bound("new_hit_rate", "≥", 0.75),
        Bound("ttft_p99_ms", "≤", 180.0),
    ),
    run=lambda seed, on_time: _measure(replace(CONFIG, seed=seed), on_time),
    baseline=lambda seed, on_time: _measure(replace(CONFIG, seed=seed, warm_prefixes=0), on_time),
    axes=("per cent of the requests", "TTFT, ms"),
)
