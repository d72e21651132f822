"""Free burst: the free tenants come with eight times as much as usual, the paying ones as always.

Three replicas. Paying tenants ask for three tenths of what these can do, free ones usually for a fifth, one
for more of it than the other. Everybody tries again twice.
"""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.fairness import weighted_jain
from loadtest.fleet.figures import (
    good_share,
    honesty,
    offered_by_tenant,
    rejected,
    service_by_tenant,
    ttft_curve,
    ttft_p99_ms,
)
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.run import FleetRun
from loadtest.fleet.traffic import OpenLoopTraffic, Stage
from loadtest.scenarios.scenario import Bound, OnTime, Scenario, ScenarioResult
from loadtest.slo import Slo
from loadtest.studies.virtual_engine import StepTime

CONFIG = FleetConfig(
    EngineConfig(num_blocks=401, max_model_len=2048, max_num_seqs=8, max_num_batched_tokens=256),
    num_replicas=3,
    step_time=StepTime(base_s=0.1, token_s=0.000_01),
    ramp_s=0.0,
)
CAPACITY = 30.0
"""Requests a second that take all seats."""
SLO = Slo(ttft_ms=2000.0)
QUIET_S, BURST_S = 5.0, 30.0
PAID = {"paid-0": 0.15, "paid-1": 0.15}
"""Part of the capacity that each asks for."""
FREE = {"free-0": 0.035, "free-1": 0.035, "free-2": 0.05, "free-3": 0.08}
BURST = 8


def _measure(config: FleetConfig, on_time: OnTime) -> ScenarioResult:
    fleet = VirtualFleet(config, on_time=on_time)
    for tenant_id, part in PAID.items():
        fleet.add(
            OpenLoopTraffic(_prompts(tenant_id, 4, config.seed), [Stage(part * CAPACITY, QUIET_S + BURST_S)])
        )
    for tenant_id, part in FREE.items():
        stages = [Stage(part * CAPACITY, QUIET_S), Stage(BURST * part * CAPACITY, BURST_S)]
        fleet.add(OpenLoopTraffic(_prompts(tenant_id, 1, config.seed), stages))
    run = fleet.run()
    paid = run.of(*PAID)
    return ScenarioResult(
        {
            "paid_goodput_share": good_share(paid, SLO),
            "free_goodput_share": good_share(run.of(*FREE), SLO),
            "weighted_jain": _weighted_jain(run),
            "paid_ttft_p99_ms": ttft_p99_ms(paid),
            "free_ttft_p99_ms": ttft_p99_ms(run.of(*FREE)),
            "paid_rejected": sum(call.record.is_rejected for call in paid),
            "returned_in_time": honesty(run.calls),
            "slo": str(SLO),
        },
        rejected(run.calls),
        {"paying": ttft_curve(paid), "free": ttft_curve(run.of(*FREE))},
    )


def _prompts(tenant_id: str, weight: int, seed: int) -> Prompts:
    return Prompts(Customer(tenant_id, weight), seed, own_tokens=(80, 120), output_tokens=(6, 10))


def _weighted_jain(run: FleetRun) -> float:
    """Of all tenants, while the burst lasts, but for its beginning."""
    begin_s, end_s = QUIET_S + 5.0, QUIET_S + BURST_S
    during = [call for call in run.calls if begin_s <= call.record.finished_at < end_s]
    weights = dict.fromkeys(PAID, 4) | dict.fromkeys(FREE, 1)
    return weighted_jain(service_by_tenant(during), offered_by_tenant(run.calls, begin_s, end_s), weights)


SCENARIO = Scenario(
    summary="Free tenants at 8 ×, paying ones steady.",
    bounds=(Bound("paid_goodput_share", "≥", 0.99), Bound("weighted_jain", "≥", 0.9)),
    run=lambda seed, on_time: _measure(replace(CONFIG, seed=seed), on_time),
    baseline=lambda seed, on_time: _measure(replace(CONFIG, seed=seed).first_come(), on_time),
    axes=("per cent of the answered requests", "TTFT, ms"),
)
