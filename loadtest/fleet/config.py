"""What a fleet in virtual time is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from cluster.admission_windows import RAMP_S
from cluster.autoscaling.cold_start import STAGES
from cluster.fair_policy import FairShare
from cluster.routing import Routing
from cluster.waiting.config import WaitingConfig
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.wait_estimate import WaitEstimator
from engine.config import EngineConfig
from engine.policy import FirstComeFirstServed, SchedulingPolicy
from loadtest.fleet.line import FirstCome, Line
from loadtest.fleet.scaler import Scaler
from loadtest.studies.virtual_engine import StepTime

SMALL_MODEL = StepTime(base_s=0.01, token_s=0.000_1)


@dataclass(frozen=True)
class FleetConfig:
    """Production's parts, and what stands in for machines. Times in seconds.

    `line` and `policy` make what each gateway, each replica decides by; `scaler`, if it is given, what the
    number of replicas follows.
    """

    engine: EngineConfig
    num_replicas: int = 4
    """From the start, and at least."""
    num_gateways: int = 1
    step_time: StepTime = SMALL_MODEL
    speed_spread: float = 0.0
    """No two machines are alike: steps take up to this part longer, on each replica another one."""
    link_delay_s: float = 0.002
    """Each way between a gateway and a replica."""
    routing: Routing = "token-load"
    line: Callable[[WaitEstimator, Random, WaitingConfig], Line] = GatewayQueue
    policy: Callable[[], SchedulingPolicy] = FairShare
    has_credit: bool = True
    """False: replicas take all that comes."""
    scaler: Callable[[], Scaler] | None = None
    waiting: WaitingConfig = field(default_factory=WaitingConfig)
    ramp_s: float = RAMP_S
    warm_prefixes: int = 8
    """That a new replica computes before requests ask for them."""
    cold_start_s: Mapping[str, float] = field(default_factory=dict)
    """By stage; known to the scaler, as from the starts of the first replicas."""
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = self.cold_start_s.keys() - set(STAGES)
        if unknown:
            raise ValueError(f"cold_start_s knows no stage {', '.join(sorted(unknown))}")

    def first_come(self) -> FleetConfig:
        """The baseline: first come, first served everywhere, and replicas take all that comes."""
        return replace(self, line=FirstCome, policy=FirstComeFirstServed, has_credit=False, warm_prefixes=0)

    @property
    def tokens_per_s(self) -> float:
        """What the first replicas compute together with full steps."""
        full = self.engine.max_num_batched_tokens
        return self.num_replicas * full / (self.step_time.base_s + full * self.step_time.token_s)
