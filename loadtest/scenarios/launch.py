"""A launch: a fleet that was tested at some load is hit by more, and replicas take their time to start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from cluster.autoscaling.capacity import CapacityEstimate
from cluster.autoscaling.policy import Autoscaler, ScaleLimits
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.figures import good_share, honesty, rejected, wait_error_s
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.run import FleetRun
from loadtest.fleet.scaler import Reactive
from loadtest.fleet.traffic import OpenLoopTraffic, Stage
from loadtest.fleet.windows import WIDTH_S, Window, windows
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
QUIET_S = 18.0
HEADROOM = 1.2
ENOUGH = 0.95
"""Of what is offered: what goes on into the next window is not good yet."""


@dataclass(frozen=True)
class Launch:
    """Loads in what one replica does with all seats taken."""

    tested: int
    hit: int
    cold_start_s: float
    lasts_s: float
    """From the hit on."""

    def scenario(self, *more: Bound) -> Scenario:
        return Scenario(
            summary=f"Tested at {self.tested} ×, hit by {self.hit} ×, {self.cold_start_s:g} s of cold start.",
            bounds=(
                Bound("goodput_of_possible_min", "≥", 0.9),
                Bound("goodput_of_best_min", "≥", 0.95),
                Bound("recovery_s", "≤", self.cold_start_s + WIDTH_S),
                Bound("replicas_most", "≤", ceil(self.hit * HEADROOM) + 1),
                *more,
            ),
            run=lambda seed, on_time: self.measure(self.config(seed), on_time),
            baseline=lambda seed, on_time: self.measure(self.naive(seed), on_time),
            axes=("seconds", "tokens of service a second"),
        )

    @property
    def max_replicas(self) -> int:
        """Far more than are needed."""
        return 2 * self.hit

    def config(self, seed: int) -> FleetConfig:
        limits = ScaleLimits(self.tested, self.max_replicas, HEADROOM)
        return FleetConfig(
            ENGINE,
            num_replicas=self.tested,
            step_time=STEP,
            scaler=lambda: Autoscaler(limits, CapacityEstimate(tokens_per_s_per_replica())),
            cold_start_s=cold_start(self.cold_start_s),
            seed=seed,
        )

    def naive(self, seed: int) -> FleetConfig:
        """First come, first served without end, and replicas one by one once there are too many requests."""
        return replace(
            self.config(seed).first_come(),
            scaler=lambda: Reactive(self.max_replicas, requests_per_replica=ENGINE.max_num_seqs),
        )

    def measure(self, config: FleetConfig, on_time: OnTime) -> ScenarioResult:
        fleet = VirtualFleet(config, on_time=on_time)
        quiet, hit = Stage(rate_per_tenant(), QUIET_S), Stage(self.hit * rate_per_tenant(), self.lasts_s)
        for one in prompts(config.seed):
            fleet.add(OpenLoopTraffic(one, [quiet, hit]))
        run = fleet.run(until=QUIET_S + self.lasts_s + TIMEOUT_S)  # all first tries have ended then
        return ScenarioResult(self._figures(run), rejected(run.calls), curves(self._windows(run)))

    def _windows(self, run: FleetRun, width_s: float = WIDTH_S) -> list[Window]:
        """While the load lasts."""
        rows = windows(run, SLO, tokens_per_s_per_replica(), answer_s=ANSWER_S, width_s=width_s)
        return [one for one in rows if one.begin_s + width_s <= QUIET_S + self.lasts_s]

    def _figures(self, run: FleetRun) -> dict[str, Any]:
        hit = [one for one in self._windows(run) if one.begin_s >= QUIET_S + ANSWER_S]
        return {
            "goodput_of_possible_min": round(min(one.good / one.possible for one in hit), 4),
            "goodput_of_best_min": round(_least_of_best(hit), 4),
            "recovery_s": _recovery_s(self._windows(run, width_s=1.0)),
            "returned_in_time": honesty(run.calls),
            "answered_share": good_share(run.calls, SLO),
            "wait_error_p50_s": wait_error_s(run),
            "replicas_most": len(run.served),
            "tokens_per_s_per_replica": round(tokens_per_s_per_replica()),
            "slo": str(SLO),
        }


def _least_of_best(hit: list[Window]) -> float:
    """The least that a window had of the best one before it, or of what was offered if that was less."""
    best, least = 0.0, 1.0
    for one in hit:
        if best:
            least = min(least, one.good / min(best, one.offered))
        best = max(best, one.good)
    return least


def _recovery_s(seconds: list[Window]) -> float | None:
    """From the hit until what is offered in any ten seconds is good, and stays so; None: it never is."""
    num = round(WIDTH_S)
    recovered_at = QUIET_S
    for begin in range(round(QUIET_S + ANSWER_S), len(seconds) - num + 1):
        ten = seconds[begin : begin + num]
        if sum(one.good for one in ten) < ENOUGH * sum(one.offered for one in ten):
            recovered_at = begin + 1.0
    return None if recovered_at > len(seconds) - num else recovered_at - QUIET_S
