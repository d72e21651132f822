"""Noisy neighbour: one tenant sends a hundred times as much as each of ten quiet ones.

Twelve replicas that are not in step with each other. The quiet ones ask for an eighth of what these can do,
the noisy one for more than all of it. Solo is the same load without the noisy one; figures are of what was
sent once all was under way.

Who has to wait for credit gets it when a step ends somewhere, just too late for the next one there, and waits
for that to end, where others come in the middle of a step: this is most of what is lost. With fewer replicas,
or if all steps ended at the same time, the wait for credit would be up to a step, too.
"""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.figures import rejected, ttft_curve, ttft_p99_ms
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.run import CallRecord, FleetRun
from loadtest.fleet.traffic import OpenLoopTraffic, Stage
from loadtest.scenarios.scenario import Bound, OnTime, Scenario, ScenarioResult
from loadtest.studies.virtual_engine import StepTime

ENGINE = EngineConfig(num_blocks=4001, max_model_len=2048, max_num_seqs=128, max_num_batched_tokens=512)
CONFIG = FleetConfig(
    ENGINE,
    num_replicas=12,
    step_time=StepTime(base_s=0.04, token_s=0.000_002),
    speed_spread=0.1,
    ramp_s=0.0,
)
NUM_QUIET = 10
RATE = 34.0
"""Requests a second of each quiet tenant."""
NOISE = 100
UNDER_WAY_S, LASTS_S = 0.8, 1.8
MAX_QUEUE_LEN = 64


def _measure(config: FleetConfig, on_time: OnTime) -> ScenarioResult:
    solo = _quiet(_run(config, on_time, noise=0))
    run = _run(config, on_time, noise=NOISE)
    quiet, noisy = _quiet(run), run.of("noisy")
    return ScenarioResult(
        {
            "quiet_p99_of_solo": round(ttft_p99_ms(quiet) / ttft_p99_ms(solo), 3),
            "quiet_ttft_p99_ms": ttft_p99_ms(quiet),
            "solo_ttft_p99_ms": ttft_p99_ms(solo),
            "noisy_ttft_p99_ms": ttft_p99_ms(noisy),
            "quiet_rejected": sum(not call.record.is_ok for call in quiet),
            "noisy_answered": sum(call.record.is_ok for call in noisy),
        },
        rejected(run.calls),
        {"quiet": ttft_curve(quiet), "solo": ttft_curve(solo)},
    )


def _run(config: FleetConfig, on_time: OnTime, *, noise: int) -> FleetRun:
    fleet = VirtualFleet(config, max_retries=0, on_time=on_time)
    for number in range(NUM_QUIET):
        fleet.add(OpenLoopTraffic(_prompts(f"quiet-{number}", config.seed), [Stage(RATE, LASTS_S)]))
    fleet.add(OpenLoopTraffic(_prompts("noisy", config.seed), [Stage(noise * RATE, LASTS_S)]))
    return fleet.run()


def _prompts(tenant_id: str, seed: int) -> Prompts:
    customer = Customer(tenant_id, max_queue_len=MAX_QUEUE_LEN)
    return Prompts(customer, seed, own_tokens=(40, 60), output_tokens=(2, 4))


def _quiet(run: FleetRun) -> list[CallRecord]:
    calls = run.of(*(f"quiet-{number}" for number in range(NUM_QUIET)))
    return [call for call in calls if call.record.sent_at >= UNDER_WAY_S]


SCENARIO = Scenario(
    summary="One tenant at 100 ×, ten quiet ones.",
    bounds=(Bound("quiet_p99_of_solo", "≤", 1.2), Bound("quiet_rejected", "≤", 0)),
    run=lambda seed, on_time: _measure(replace(CONFIG, seed=seed), on_time),
    baseline=lambda seed, on_time: _measure(replace(CONFIG, seed=seed).first_come(), on_time),
    axes=("per cent of the answered requests", "TTFT, ms"),
)
