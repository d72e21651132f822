"""A cluster in virtual time as the autoscaler sees it, and values for what it is told and tells."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from cluster.autoscaling.capacity import CapacityEstimate, ReplicaRate
from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Autoscaler, FleetView, ScaleLimits
from cluster.autoscaling.view import (
    CapacityView,
    ClusterStatus,
    ColdStartView,
    DemandView,
    HeadroomView,
    ReplicaView,
)

MAX_QUEUE_S = 10.0
"""What would wait for longer is shed."""


def make_status(**fields: Any) -> ClusterStatus:
    defaults: dict[str, Any] = {
        "at": 5.0,
        "model": "tiny",
        "min_replicas": 1,
        "max_replicas": 4,
        "target": 2,
        "reason": "enough",
        "trouble": None,
        "replicas": (
            ReplicaView(replica_id="a", state="serving"),
            ReplicaView(replica_id="b", state="starting", stage="weights", in_stage_s=2.0, eta_s=12.0),
        ),
        "demand": DemandView(
            offered_tokens_per_s=900.0,
            shed_tokens_per_s=0.0,
            expected_tokens_per_s=1000.0,
            backlog_tokens=50,
        ),
        "capacity": CapacityView(tokens_per_s=800.0, tokens_per_s_per_replica=800.0),
        "headroom": HeadroomView(wanted=1.2, actual=0.8),
        "cold_start": ColdStartView(total_s=30.0, stages_s={"node": 1.0, "weights": 29.0}),
    }
    return ClusterStatus(**{**defaults, **fields})


class Order(NamedTuple):
    at: int
    before: int
    target: int


class ScalingWorld:
    """Replicas that do `tokens_per_s` each, start in `cold_start_s` and end at once; time goes by seconds."""

    def __init__(
        self,
        limits: ScaleLimits,
        *,
        num_replicas: int,
        tokens_per_s: float = 1000.0,
        believed: float | None = None,
        cold_start_s: float = 90.0,
        told_s: float | None = None,
    ) -> None:
        """`told_s`: what the scaler thinks that a start takes; None: what it does."""
        self.scaler = Autoscaler(limits, CapacityEstimate(believed or tokens_per_s))
        self.target = self.num_serving = num_replicas
        self.orders: list[Order] = []
        self.backlog = 0.0
        self.now = 0
        self._tokens_per_s = tokens_per_s
        self._cold_start_s = cold_start_s
        self._told_s = cold_start_s if told_s is None else told_s
        self._ready_at: list[float] = []

    @property
    def num_turns(self) -> int:
        """Changes of direction."""
        ways = [order.target > order.before for order in self.orders]
        return sum(a != b for a, b in pairwise(ways))

    def slow_down(self, tokens_per_s: float) -> None:
        """Every replica does so much from now on."""
        self._tokens_per_s = tokens_per_s

    def run(self, seconds: int, offered: Callable[[int], float]) -> list[Order]:
        """`offered(t)` tokens come in second t. The orders that are given meanwhile."""
        begun = len(self.orders)
        for _ in range(seconds):
            self._second(offered(self.now))
        return self.orders[begun:]

    def skip(self, seconds: int) -> None:
        """Nobody asks the autoscaler, and nothing else changes."""
        self.now += seconds

    def _second(self, offered: float) -> None:
        self.num_serving += sum(at <= self.now for at in self._ready_at)
        self._ready_at = [at for at in self._ready_at if at > self.now]
        capacity = self.num_serving * self._tokens_per_s
        done = min(capacity, self.backlog + offered)
        left = self.backlog + offered - done
        self.backlog = min(left, MAX_QUEUE_S * capacity) if capacity else left
        waiting = int(self.backlog > 0)
        replicas = {
            f"r{number}": ReplicaRate(done / self.num_serving, int(done > 0), waiting)
            for number in range(self.num_serving)
        }
        demand = Demand(offered, left - self.backlog, round(self.backlog), replicas)
        etas = [at - self.now for at in self._ready_at]
        fleet = FleetView(self.target, self.num_serving, etas, 0, self._told_s)
        self._obey(self.scaler.decide(float(self.now), demand, fleet).target)
        self.now += 1

    def _obey(self, target: int) -> None:
        if target == self.target:
            return
        self.orders.append(Order(self.now, self.target, target))
        if target > self.target:
            self._ready_at += [self.now + self._cold_start_s] * (target - self.target)
        else:
            self.num_serving -= self.target - target
        self.target = target


def noisy(tokens_per_s: float, mean_tokens: float, rng: Random) -> float:
    """What comes in one second of Poisson arrivals whose sizes are exponential."""
    tokens, at = 0.0, rng.expovariate(tokens_per_s / mean_tokens) if tokens_per_s else 1.0
    while at < 1.0:
        tokens += rng.expovariate(1 / mean_tokens)
        at += rng.expovariate(tokens_per_s / mean_tokens)
    return tokens
