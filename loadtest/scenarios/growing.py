"""What those scenarios share in which the number of replicas follows the load."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.curve import Curve
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.line import FirstCome
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.traffic import ClosedLoopTraffic
from loadtest.fleet.windows import Window, windows
from loadtest.slo import Slo
from loadtest.studies.virtual_engine import StepTime

TIMEOUT_S = 30.0
"""Clients hang up then, and try again twice."""
NUM_TENANTS = 4
PROMPT_TOKENS, OUTPUT_TOKENS = 100, 8
ENGINE = EngineConfig(num_blocks=401, max_model_len=2048, max_num_seqs=6, max_num_batched_tokens=256)
STEP = StepTime(base_s=0.25, token_s=0.000_01)
"""One step stands for several: what a request takes in seconds is right, and a run has fewer steps."""
ANSWER_S = OUTPUT_TOKENS * STEP.base_s
"""That nothing delays."""


def cold_start(total_s: float) -> dict[str, float]:
    """By stage."""
    parts = {"node": 0.3, "import": 0.1, "weights": 0.4, "KV pool": 0.02, "warm-up": 0.1, "golden": 0.06}
    return {stage: part * total_s for stage, part in parts.items()} | {"join": 0.02 * total_s}


def prompts(seed: int) -> list[Prompts]:
    """One for each tenant, all alike."""
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


def rate_per_tenant() -> float:
    """Requests a second, such that all tenants together ask for what one replica does."""
    return tokens_per_s_per_replica() / (PROMPT_TOKENS + OUTPUT_TOKENS) / NUM_TENANTS


@cache
def tokens_per_s_per_replica() -> float:
    """Of service: measured on one replica that always has more to do."""
    config = FleetConfig(ENGINE, num_replicas=1, step_time=STEP, ramp_s=0.0, line=FirstCome)
    fleet = VirtualFleet(config, max_retries=0)
    sources = prompts(seed=0)
    fleet.add(
        ClosedLoopTraffic(lambda number: sources[number % NUM_TENANTS].make(number), 3 * ENGINE.max_num_seqs)
    )
    run = fleet.run(until=100.0)
    steady = windows(run, Slo(), tokens_per_s_per_replica=1.0)[2:]
    return sum(one.good for one in steady) / len(steady)


def curves(rows: Sequence[Window]) -> dict[str, Curve]:
    at = [one.begin_s for one in rows]
    return {
        "offered": Curve(at, [one.offered for one in rows]),
        "capacity": Curve(at, [one.capacity for one in rows]),
        "goodput": Curve(at, [one.good for one in rows]),
    }
