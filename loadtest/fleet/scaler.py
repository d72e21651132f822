"""Who says how many replicas there are to be: production's policy, or the naive one beside it."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple, Protocol

from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Decision, FleetView


class Scaler(Protocol):
    """What the launcher asks of `Autoscaler`, once a second."""

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision: ...


class Reactive:
    """The baseline: one replica more when there were too many requests on each for `delay_s`.

    It neither knows how long a start takes nor orders anything while one is on its way.
    """

    def __init__(self, max_replicas: int, *, requests_per_replica: int, delay_s: float = 30.0) -> None:
        self._max_replicas = max_replicas
        self._requests_per_replica = requests_per_replica
        self._delay_s = delay_s
        self._over_since: float | None = None

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        there = sum(rate.num_running + rate.num_waiting for rate in demand.replicas.values())
        wanted = min(ceil(there / self._requests_per_replica), self._max_replicas)
        if wanted <= fleet.target or fleet.etas_s:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = now
        elif now - self._over_since >= self._delay_s:
            self._over_since = None
            return Decision(fleet.target + 1, f"{there} requests")
        return Decision(fleet.target, "enough")


class Unaware:
    """The baseline where the cold start matters: told that a replica serves as soon as it is ordered."""

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        return self._scaler.decide(now, demand, fleet._replace(cold_start_s=0.0))


class ScalingOrder(NamedTuple):
    at: float
    before: int
    target: int


class Recorded:
    """Owns what another one ordered in a run."""

    def __init__(self, scaler: Scaler) -> None:
        self.orders: list[ScalingOrder] = []
        self._scaler = scaler

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        decision = self._scaler.decide(now, demand, fleet)
        if decision.target != fleet.target:
            self.orders.append(ScalingOrder(now, fleet.target, decision.target))
        return decision
