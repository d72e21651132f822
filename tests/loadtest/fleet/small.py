"""Small fleets for tests."""

from __future__ import annotations

from typing import Any

from engine.config import EngineConfig
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.prompts import Prompts
from loadtest.studies.virtual_engine import StepTime

ENGINE = EngineConfig(num_blocks=401, max_model_len=2048, max_num_seqs=8, max_num_batched_tokens=256)
STEP_S = 0.1


def a_config(**fields: Any) -> FleetConfig:
    """Two replicas of eight seats, steps of a tenth of a second, no slow start."""
    defaults: dict[str, Any] = {
        "num_replicas": 2,
        "step_time": StepTime(base_s=STEP_S, token_s=0.0),
        "ramp_s": 0.0,
    }
    return FleetConfig(ENGINE, **{**defaults, **fields})


def prompts_of(customer: Customer | None = None, **fields: Any) -> Prompts:
    """Of 100 tokens, answered with 8."""
    defaults: dict[str, Any] = {"own_tokens": (100, 100), "output_tokens": (8, 8)}
    return Prompts(customer or Customer("tenant"), 0, **{**defaults, **fields})
