"""Long against short: one tenant's prompts of 32,768 tokens, and another one's questions of two words.

Two replicas that hold two long prompts each, twelve that are asked at any time, and steps of 66 ms. What
keeps the short ones short is the engine: first come, first served does as well beside it.
"""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.figures import rejected, service_by_tenant, ttft_curve, ttft_p99_ms
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.traffic import ClosedLoopTraffic, OpenLoopTraffic, Stage
from loadtest.scenarios.scenario import Bound, OnTime, Scenario, ScenarioResult
from loadtest.studies.virtual_engine import StepTime

LONG_TOKENS = 32_768
ENGINE = EngineConfig(
    num_blocks=4401, max_model_len=LONG_TOKENS + 64, max_num_seqs=16, max_num_batched_tokens=512
)
STEP = StepTime(base_s=0.04, token_s=0.000_05)
CONFIG = FleetConfig(ENGINE, num_replicas=2, step_time=STEP, ramp_s=0.0)
SHORT = Customer("short")
LONG = Customer("long")
LASTS_S = 60.0
NUM_LONG = 12
MAX_STEPS = 3


def _measure(config: FleetConfig, on_time: OnTime) -> ScenarioResult:
    fleet = VirtualFleet(config, on_time=on_time, max_retries=0)
    questions = Prompts(SHORT, config.seed, own_tokens=(6, 10), output_tokens=(2, 6))
    fleet.add(OpenLoopTraffic(questions, [Stage(5.0, LASTS_S)]))
    long = Prompts(LONG, config.seed, own_tokens=(LONG_TOKENS, LONG_TOKENS), output_tokens=(4, 8))
    fleet.add(ClosedLoopTraffic(long.make, NUM_LONG))
    run = fleet.run(until=LASTS_S)
    ttft_ms = ttft_p99_ms(run.of(SHORT.tenant_id))
    full_step_s = STEP.base_s + STEP.token_s * ENGINE.max_num_batched_tokens
    served = service_by_tenant(run.calls)[LONG.tenant_id]
    return ScenarioResult(
        {
            "short_ttft_p99_ms": ttft_ms,
            "short_ttft_p99_steps": round(ttft_ms / 1000 / full_step_s, 2),
            "short_answered": sum(call.record.is_ok for call in run.of(SHORT.tenant_id)),
            "long_answered": sum(call.record.is_ok for call in run.of(LONG.tenant_id)),
            "long_of_capacity": round(served / (config.tokens_per_s * LASTS_S), 4),
            "long_ttft_p99_ms": ttft_p99_ms(run.of(LONG.tenant_id)),
        },
        rejected(run.calls),
        {"short": ttft_curve(run.of(SHORT.tenant_id))},
    )


SCENARIO = Scenario(
    summary="Prompts of 32 K tokens of one tenant, two-word questions of another.",
    bounds=(Bound("short_ttft_p99_steps", "≤", MAX_STEPS), Bound("long_of_capacity", "≥", 0.75)),
    run=lambda seed, on_time: _measure(replace(CONFIG, seed=seed), on_time),
    baseline=lambda seed, on_time: _measure(replace(CONFIG, seed=seed).first_come(), on_time),
    axes=("per cent of the answered short requests", "TTFT, ms"),
)
