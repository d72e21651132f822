"""How many replicas there are to be: for the load that is expected when one that is ordered now would serve.

Pure: told the time and what is seen.

Algorithm: load = what is offered (what was shed, too), forecast one learned cold start ahead, + what waits
now and would not be drained by then, over `DRAIN_S`. Needed = load × headroom ÷ what one replica was seen to
do (`capacity.py`). Up: at once, by as many as the load needs without `DOUBT` of its level's standard errors;
where requests wait at every replica, or are shed, second after second, there is no doubt. Replicas on
their way count as ordered. Down: by one at a time, to what the highest load of the last `scale_down_delay_s`
needs and a tenth more. So noise at a constant load moves nothing. From 0 at the first demand, to 0 after as
long without any. What nobody watched says nothing: after a gap (`GAP_S`) the delay begins anew.
Failure mode: who rises must do so for a while before it is seen, and what rises meanwhile and in one cold
start has to fit into what is there. A crowd of clients who ask anew only once they were answered shows no
more than what waits of it: that is grown into, a cold start at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from cluster.autoscaling.capacity import CapacityEstimate
from cluster.autoscaling.demand import Demand
from cluster.autoscaling.forecast import LoadForecast

DRAIN_S = 60.0
"""What waits is to be served within this time."""
DOUBT = 2.0
NUM_SHED = 6
NUM_FULL = 15
"""So many looks in a row are no accident: queues come and go by themselves, refusals do not."""
DOWN_SLACK = 1.1
"""So much more than the peak has to fit into what is left."""
GAP_S = 5.0
"""Between two decisions: a rollout, say, or a store that was away."""
ROUNDING = 1e-9


class ScaleLimits(NamedTuple):
    """What the operator allows."""

    min_replicas: int
    max_replicas: int
    headroom: float = 1.2
    """Capacity that is to be there ÷ load."""
    scale_down_delay_s: float = 300.0


class FleetView(NamedTuple):
    """The replicas now."""

    target: int
    """As ordered."""
    num_serving: int
    etas_s: Sequence[float]
    """Of those on their way."""
    num_leaving: int
    cold_start_s: float
    """From an order until that replica serves, as learned."""


class Decision(NamedTuple):
    target: int
    reason: str


class _Peak:
    """The highest load of the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._begun_at: float | None = None
        self._falling: deque[tuple[float, float]] = deque()
        """(at, load): each higher than all that came later."""

    def observe(self, now: float, load: float) -> None:
        self._begun_at = now if self._begun_at is None else self._begun_at
        while self._falling and self._falling[-1][1] <= load:
            self._falling.pop()
        self._falling.append((now, load))
        while now - self._falling[0][0] > self._window_s:
            self._falling.popleft()

    def of(self, now: float) -> float | None:
        """None until it has been watched for the whole window."""
        if self._begun_at is None or now - self._begun_at < self._window_s:
            return None
        return self._falling[0][1]


class Autoscaler:
    """Owns what was learned of the load and of the capacity; how many replicas are ordered it is told."""

    def __init__(self, limits: ScaleLimits, capacity: CapacityEstimate | None = None) -> None:
        self.limits = limits
        self._capacity = capacity or CapacityEstimate()
        self._forecast = LoadForecast()
        self._peak = _Peak(limits.scale_down_delay_s)
        self._asked_at: float | None = None
        """When there was demand last, or when this began to look, or to look again."""
        self._decided_at = float("-inf")
        self._num_full = 0
        """Looks in a row at which requests waited at every replica, or were shed."""
        self._num_shed = 0
        """Looks in a row at which some were shed."""
        self.expected_tokens_per_s = 0.0
        """Load when a replica that is ordered now would serve, with what has to be drained."""

    @property
    def tokens_per_s_per_replica(self) -> float:
        return self._capacity.tokens_per_s

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        """To be asked about once a second. `now` in seconds, monotonic."""
        if now - self._decided_at > GAP_S:
            self._watch_anew()
        self._decided_at = now
        self._forecast.observe(now, demand.offered_tokens_per_s)
        self._capacity.observe(now, demand.replicas)
        ahead_s = fleet.cold_start_s
        expected = self._forecast.expected(ahead_s)
        waiting = self._left_waiting(demand.backlog_tokens, expected, fleet) / DRAIN_S
        self.expected_tokens_per_s = load = expected + waiting
        self._peak.observe(now, load)
        if demand.is_any or self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at >= self.limits.scale_down_delay_s:
            return self._bounded(0, fleet, f"no demand for {self.limits.scale_down_delay_s:g} s")
        certain = self._certain(expected, ahead_s, demand) + waiting
        least = 1 if demand.is_any or fleet.target else 0
        needed = max(least, self._needed(certain))
        if needed > fleet.target:
            why = f"{certain:.0f} tokens/s expected in {ahead_s:.0f} s need {needed} replica(s)"
            if fleet.target == 0:
                why = "there is demand again"
            return self._bounded(needed, fleet, why)
        return self._down(now, fleet)

    def _watch_anew(self) -> None:
        self._peak = _Peak(self.limits.scale_down_delay_s)
        self._asked_at = None

    def _certain(self, expected: float, ahead_s: float, demand: Demand) -> float:
        """Of the load that is expected."""
        is_shedding = demand.shed_tokens_per_s > 0
        self._num_shed = self._num_shed + 1 if is_shedding else 0
        self._num_full = self._num_full + 1 if is_shedding or demand.is_everyone_full else 0
        if self._num_shed >= NUM_SHED:
            return max(expected, self._forecast.recent)
        if self._num_full >= NUM_FULL:
            return expected
        return self._forecast.certain(ahead_s, DOUBT)

    def _left_waiting(self, backlog_tokens: float, load: float, fleet: FleetView) -> float:
        """Tokens of the backlog that still wait one cold start from now, with all that are on their way.

        What comes on top of it till then is not counted: what cannot be served in time is shed.
        """
        ahead_s = fleet.cold_start_s
        replica_seconds = fleet.num_serving * ahead_s + sum(max(0.0, ahead_s - eta) for eta in fleet.etas_s)
        spare = self.tokens_per_s_per_replica * replica_seconds - load * ahead_s
        return max(0.0, backlog_tokens - max(0.0, spare))

    def _needed(self, load: float) -> int:
        return ceil(load * self.limits.headroom / self.tokens_per_s_per_replica - ROUNDING)

    def _down(self, now: float, fleet: FleetView) -> Decision:
        peak = self._peak.of(now)
        if peak is None or fleet.num_leaving or fleet.etas_s:
            return self._bounded(fleet.target, fleet, "enough")
        enough = max(1, self._needed(peak * DOWN_SLACK))
        if enough >= fleet.target:
            return self._bounded(fleet.target, fleet, "enough")
        delay_s = self.limits.scale_down_delay_s
        why = f"{peak:.0f} tokens/s, the most of the last {delay_s:g} s, need {enough} replica(s)"
        return self._bounded(fleet.target - 1, fleet, why)

    def _bounded(self, wanted: int, fleet: FleetView, reason: str) -> Decision:
        target = min(max(wanted, self.limits.min_replicas), self.limits.max_replicas)
        if target < wanted:
            reason += f"; --max-replicas is {target}"
        elif target == fleet.target:
            reason = "enough"
        return Decision(target, reason)
