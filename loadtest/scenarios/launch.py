"""A launch: a fleet that was tested at some load is hit by more, and replicas take their time to start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from cluster.autoscaling.capacity import CapacityEstimate
from cluster.autoscaling.policy import Autoscaler, ScaleLimits
from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.curve import Curve
from loadtest.fleet.figures import good_share, honesty, rejected, wait_error_s
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.line import FirstCome
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.run import FleetRun
from loadtest.fleet.scaler import Reactive
from loadtest.fleet.traffic import ClosedLoop, OpenLoop, Stage
from loadtest.fleet.windows import WIDTH_S, Window, windows
from loadtest.scenarios.scenario import Bound, OnTime, Outcome, Scenario
from loadtest.slo import Slo
from loadtest.studies.virtual_engine import StepTime

SLO = Slo(ttft_ms=12_000.0, e2e_ms=30_000.0)
"""The class's deadline, which is for its turn in the queue, and eight of these steps."""
TIMEOUT_S = 30.0
"""Clients hang up then, and try again twice."""
NUM_TENANTS = 4
PROMPT_TOKENS, OUTPUT_TOKENS = 100, 8
QUIET_S = 18.0
HEADROOM = 1.2
ENGINE = EngineConfig(num_blocks=401, max_model_len=2048, max_num_seqs=6, max_num_batched_tokens=256)
STEP = StepTime(base_s=0.25, token_s=0.000_01)
"""One step stands for several: what a request takes in seconds is right, and a run has fewer steps."""
ANSWER_S = OUTPUT_TOKENS * STEP.base_s
"""That nothing delays; figures are of the time from the first such answers on."""
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
                *more,
            ),
            run=lambda seed, on_time: self.measure(self.config(seed), on_time),
            baseline=lambda seed, on_time: self.measure(self.naive(seed), on_time),
            axes=("seconds", "tokens of service a second"),
        )

    @property
    def max_replicas(self) -> int:
        return round(self.hit * HEADROOM) + 2

    def config(self, seed: int) -> FleetConfig:
        limits = ScaleLimits(self.tested, self.max_replicas, HEADROOM)
        return FleetConfig(
            ENGINE,
            num_replicas=self.tested,
            step_time=STEP,
            scaler=lambda: Autoscaler(limits, CapacityEstimate(tokens_per_s_per_replica())),
            cold_start_s=_stages(self.cold_start_s),
            seed=seed,
        )

    def naive(self, seed: int) -> FleetConfig:
        """First come, first served without end, and replicas one by one once there are too many requests."""
        return replace(
            self.config(seed).first_come(),
            scaler=lambda: Reactive(self.max_replicas, requests_per_replica=ENGINE.max_num_seqs),
        )

    def measure(self, config: FleetConfig, on_time: OnTime) -> Outcome:
        fleet = VirtualFleet(config, on_time=on_time)
        for prompts in _prompts(config.seed):
            per_replica = tokens_per_s_per_replica() / (PROMPT_TOKENS + OUTPUT_TOKENS) / NUM_TENANTS
            fleet.add(
                OpenLoop(prompts, [Stage(per_replica, QUIET_S), Stage(self.hit * per_replica, self.lasts_s)])
            )
        run = fleet.run(until=QUIET_S + self.lasts_s + TIMEOUT_S)  # all first tries have ended then
        return Outcome(self._figures(run), rejected(run.calls), _curves(self._windows(run)))

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


def _stages(total_s: float) -> dict[str, float]:
    parts = {"node": 0.3, "import": 0.1, "weights": 0.4, "KV pool": 0.02, "warm-up": 0.1, "golden": 0.06}
    return {stage: part * total_s for stage, part in parts.items()} | {"join": 0.02 * total_s}


def _prompts(seed: int) -> list[Prompts]:
    return [
        Prompts(
            Customer(f"tenant-{number}", weight=4),
            seed,
            own_tokens=(PROMPT_TOKENS, PROMPT_TOKENS),
            output_tokens=(OUTPUT_TOKENS, OUTPUT_TOKENS),
            timeout_s=TIMEOUT_S,
        )
        for number in range(NUM_TENANTS)
    ]


@cache
def tokens_per_s_per_replica() -> float:
    """Of service: measured on one replica that always has more to do."""
    config = FleetConfig(ENGINE, num_replicas=1, step_time=STEP, ramp_s=0.0, line=FirstCome)
    fleet = VirtualFleet(config, max_retries=0)
    sources = _prompts(seed=0)
    fleet.add(ClosedLoop(lambda number: sources[number % NUM_TENANTS].make(number), 3 * ENGINE.max_num_seqs))
    run = fleet.run(until=100.0)
    steady = windows(run, Slo(), tokens_per_s_per_replica=1.0)[2:]
    return sum(one.good for one in steady) / len(steady)


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


def _curves(rows: list[Window]) -> dict[str, Curve]:
    at = [one.begin_s for one in rows]
    return {
        "offered": Curve(at, [one.offered for one in rows]),
        "capacity": Curve(at, [one.capacity for one in rows]),
        "goodput": Curve(at, [one.good for one in rows]),
    }
