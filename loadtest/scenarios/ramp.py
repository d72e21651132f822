"""A ramp: the load rises steadily to eight times what one replica does, and a replica takes 75 s to start.

A step orders the same whether the cold start is known or not; here it decides. What rises until it stands out
of noise, and in one cold start on top, is nobody's to foresee and has to fit into the first replicas: that is
why there are six. The baseline is the same autoscaler, told that replicas serve as soon as they are ordered.
Once the load is what it was, replicas leave one by one, as soon as a minute has needed fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cluster.autoscaling.capacity import CapacityEstimate
from cluster.autoscaling.policy import Autoscaler, ScaleLimits
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.curve import Curve
from loadtest.fleet.figures import good_share, rejected
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.run import FleetRun
from loadtest.fleet.scaler import Recorded, Scaler, ScalingOrder, Unaware
from loadtest.fleet.traffic import OpenLoopTraffic, Stage
from loadtest.fleet.windows import WIDTH_S, windows
from loadtest.record import REJECTED
from loadtest.scenarios.growing import (
    ANSWER_S,
    ENGINE,
    STEP,
    TIMEOUT_S,
    cold_start,
    curves,
    prompts,
    rate_per_tenant,
    tokens_per_s_per_replica,
)
from loadtest.scenarios.scenario import Bound, OnTime, Scenario, ScenarioResult
from loadtest.slo import Slo

SLO = Slo(ttft_ms=10_000.0, e2e_ms=30_000.0)
"""The class's deadline, and as long as clients wait."""
NUM_FIRST, HIGHEST = 6, 8
"""Replicas that there are at least; load in what one replica does, from 1 on."""
QUIET_S, RISES_S, AFTER_S = 60.0, 210.0, 90.0
ENDS_S = QUIET_S + RISES_S
COLD_START_S = 75.0
HEADROOM = 1.2
LIMITS = ScaleLimits(NUM_FIRST, max_replicas=20, headroom=HEADROOM, scale_down_delay_s=60.0)
FORESEEN = HIGHEST + (HIGHEST - 1) * COLD_START_S / RISES_S
"""Load if it went on rising for one more cold start: nobody can know that it does not."""


def aware() -> Autoscaler:
    return Autoscaler(LIMITS, CapacityEstimate(tokens_per_s_per_replica()))


def measure(scaler: Scaler, seed: int, on_time: OnTime) -> ScenarioResult:
    recorded = Recorded(scaler)
    config = FleetConfig(
        ENGINE,
        num_replicas=NUM_FIRST,
        step_time=STEP,
        scaler=lambda: recorded,
        cold_start_s=cold_start(COLD_START_S),
        seed=seed,
    )
    fleet = VirtualFleet(config, on_time=on_time)
    for one in prompts(seed):
        fleet.add(OpenLoopTraffic(one, _stages()))
    return _outcome(fleet.run(until=ENDS_S + AFTER_S + TIMEOUT_S), recorded.orders)


def _stages() -> list[Stage]:
    """A second each while it rises."""
    one = rate_per_tenant()
    rising = [1 + (HIGHEST - 1) * (second + 0.5) / RISES_S for second in range(round(RISES_S))]
    return [Stage(one, QUIET_S), *(Stage(load * one, 1.0) for load in rising), Stage(one, AFTER_S)]


def _outcome(run: FleetRun, orders: Sequence[ScalingOrder]) -> ScenarioResult:
    rows = windows(run, SLO, tokens_per_s_per_replica(), answer_s=ANSWER_S)
    rising = [one for one in rows if one.begin_s >= QUIET_S and one.begin_s + WIDTH_S <= ENDS_S]
    refused = [call for call in run.calls if call.record.status in REJECTED]
    failed = [call for call in run.calls if not call.record.is_ok and call.record.status not in REJECTED]
    return ScenarioResult(
        {
            "goodput_of_offered_min": round(min(one.good / one.offered for one in rising), 4),
            "refused_share": round(len(refused) / len(run.calls), 4),
            "failed": len(failed),
            "turns": _turns([order for order in orders if order.at < ENDS_S]),
            "replicas_most": max((order.target for order in orders), default=NUM_FIRST),
            "replicas_last": orders[-1].target if orders else NUM_FIRST,
            "answered_share": good_share(run.calls, SLO),
            "tokens_per_s_per_replica": round(tokens_per_s_per_replica()),
            "slo": str(SLO),
        },
        rejected(run.calls),
        {"ordered": _ordered(orders, run.ended_s), **curves(rows)},
    )


def _turns(orders: Sequence[ScalingOrder]) -> int:
    ways = [order.target > order.before for order in orders]
    return sum(a != b for a, b in pairwise(ways))


def _ordered(orders: Sequence[ScalingOrder], ended_s: float) -> Curve:
    """What all replicas that are to be there would do."""
    steps = [(order.at, count) for order in orders for count in (order.before, order.target)]
    last = orders[-1].target if orders else NUM_FIRST
    at, counts = zip((0.0, NUM_FIRST), *steps, (ended_s, last), strict=True)
    return Curve(at, [count * tokens_per_s_per_replica() for count in counts])


SCENARIO = Scenario(
    summary=f"From 1 × to {HIGHEST} × in {RISES_S:g} s, {COLD_START_S:g} s of cold start.",
    bounds=(
        Bound("goodput_of_offered_min", "≥", 0.9),
        Bound("refused_share", "≤", 0.01),
        Bound("failed", "≤", 0),
        Bound("turns", "≤", 1),
        Bound("replicas_most", "≤", round(FORESEEN * HEADROOM + 1)),
        Bound("replicas_last", "≤", NUM_FIRST),
    ),
    run=lambda seed, on_time: measure(aware(), seed, on_time),
    baseline=lambda seed, on_time: measure(Unaware(aware()), seed, on_time),
    axes=("seconds", "tokens of service a second"),
)
