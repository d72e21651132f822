"""Two gateways, one of which cannot reach Redis for 20 s.

It then knows no claims of the prefix index and lets tenants take its share of their limits, beside what the
other one lets them take of the whole. Five tenants with 1,024 tokens in common have no limits; one that has
them asks for twice as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.figures import good_share, hit_rate, rejected, ttft_curve, ttft_p99_ms
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.run import CallRecord, FleetRun
from loadtest.fleet.traffic import OpenLoopTraffic, Stage
from loadtest.record import REJECTED
from loadtest.scenarios.scenario import Bound, OnTime, Scenario, ScenarioResult
from loadtest.slo import Slo
from loadtest.studies.virtual_engine import StepTime
from tenants.terms import Limits

CONFIG = FleetConfig(
    EngineConfig(num_blocks=801, max_model_len=2048, max_num_seqs=16, max_num_batched_tokens=512),
    num_replicas=3,
    num_gateways=2,
    step_time=StepTime(base_s=0.04, token_s=0.000_05),
    ramp_s=0.0,
)
SLO = Slo(ttft_ms=1000.0)
CUT_S, CUT_FOR_S, LASTS_S = 15.0, 20.0, 45.0
LIMITS = Limits(requests_per_min=300, burst_s=5)
GRANTED = (CUT_FOR_S + LIMITS.burst_s) * 300 / 60
"""Requests that the limit lets pass while the gateway is cut, all that had gathered before included."""
SHARING = tuple(f"tenant-{number}" for number in range(5))


def _measure(config: FleetConfig, on_time: OnTime, *, cut_for_s: float) -> ScenarioResult:
    fleet = VirtualFleet(config, on_time=on_time)
    for tenant_id in SHARING:
        prompts = Prompts(
            Customer(tenant_id), config.seed, shared_tokens=1024, own_tokens=(60, 100), output_tokens=(6, 10)
        )
        fleet.add(OpenLoopTraffic(prompts, [Stage(5.0, LASTS_S)]))
    limited = Prompts(
        Customer("limited", limits=LIMITS), config.seed, own_tokens=(60, 100), output_tokens=(6, 10)
    )
    fleet.add(OpenLoopTraffic(limited, [Stage(10.0, LASTS_S)]))
    fleet.clock.at(CUT_S, lambda: fleet.gateways[1].limits.cut(cut_for_s))
    run = fleet.run()
    sharing = run.of(*SHARING)
    return ScenarioResult(
        {
            "goodput_share": good_share(sharing, SLO),
            "failed": sum(not call.record.is_ok and call.record.status not in REJECTED for call in run.calls),
            "admitted_of_limit": round(_admitted(run) / GRANTED, 4),
            "hit_rate_before": hit_rate(_between(sharing, 5.0, CUT_S)),
            "hit_rate_cut": hit_rate(_between(sharing, CUT_S, CUT_S + CUT_FOR_S)),
            "hit_rate_after": hit_rate(_between(sharing, CUT_S + CUT_FOR_S, LASTS_S)),
            "ttft_p99_ms_before": ttft_p99_ms(_between(sharing, 5.0, CUT_S)),
            "ttft_p99_ms_cut": ttft_p99_ms(_between(sharing, CUT_S, CUT_S + CUT_FOR_S)),
            "slo": str(SLO),
        },
        rejected(run.calls),
        {
            "before": ttft_curve(_between(sharing, 5.0, CUT_S)),
            "cut": ttft_curve(_between(sharing, CUT_S, CUT_S + CUT_FOR_S)),
        },
    )


def _between(calls: Sequence[CallRecord], begin_s: float, end_s: float) -> list[CallRecord]:
    return [call for call in calls if begin_s <= call.record.sent_at < end_s]


def _admitted(run: FleetRun) -> int:
    during = _between(run.of("limited"), CUT_S, CUT_S + CUT_FOR_S)
    return sum(call.record.is_ok for call in during)


SCENARIO = Scenario(
    summary="Two gateways, one cut from Redis for 20 s.",
    bounds=(
        Bound("goodput_share", "≥", 0.99),
        Bound("failed", "≤", 0),
        Bound("admitted_of_limit", "≤", 1.5),
        Bound("hit_rate_cut", "≥", 0.8),
        Bound("hit_rate_after", "≥", 0.9),
    ),
    run=lambda seed, on_time: _measure(replace(CONFIG, seed=seed), on_time, cut_for_s=CUT_FOR_S),
    baseline=lambda seed, on_time: _measure(replace(CONFIG, seed=seed), on_time, cut_for_s=0.0),
    axes=("per cent of the answered requests", "TTFT, ms"),
)
