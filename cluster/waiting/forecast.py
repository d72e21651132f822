"""What a line of requests means in seconds, and against the limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.waiting.arrival import Arrival
from cluster.waiting.config import WaitingConfig
from cluster.waiting.fleet import Fleet
from cluster.waiting.promises import NOBODY, Expected
from cluster.waiting.shedding import Fullness
from cluster.waiting.wait_estimate import Wait, WaitEstimator
from tenants.fair_queue import FairQueue, Share


@dataclass(frozen=True, slots=True)
class Forecast:
    line: FairQueue
    estimator: WaitEstimator
    fleet: Fleet
    config: WaitingConfig
    now: float

    def wait(self, share: Share) -> Wait:
        """Of a new request of that share."""
        return self.estimator.wait(self.line, share, self.fleet, self.now)

    def fullness(
        self,
        arrival: Arrival,
        *,
        without_lower: bool = False,
        lower_yield: bool = False,
        besides: Expected = NOBODY,
    ) -> Fullness:
        """Of the line with the arrival in it, and with those `besides` it; see `WaitEstimator.wait`."""
        wait = self.estimator.wait(
            self.line, arrival.share, self.fleet, self.now,
            without_lower=without_lower, lower_yield=lower_yield, besides=besides.work,
        )  # fmt: skip
        num_more = 1 + besides.num_requests
        num_lower = self.line.num_below(arrival.share) if without_lower else 0
        num_own = self.line.num_of(arrival.share.tenant_id) + num_more
        return Fullness(
            of_time=self._part_of_time(arrival, wait),
            of_tenant=num_own / (arrival.max_queue_len or math.inf),
            of_all=(len(self.line) - num_lower + num_more)
            / self.config.max_waiting_at(self.fleet.num_replicas),
        )

    def _part_of_time(self, arrival: Arrival, wait: Wait) -> float:
        """Until the first replica comes it is held, which counts against the answer only."""
        is_held = self.fleet.num_replicas == 0
        until_turn_s = wait.drain_s if is_held else wait.from_now_s
        return max(
            self._part(until_turn_s, arrival, arrival.first_token_by_s),
            self._part(wait.from_now_s, arrival, arrival.answer_by_s),
        )

    def _part(self, wait_s: float, arrival: Arrival, by_s: float) -> float:
        left_s = self.estimator.turn_by_s(arrival.queued, by_s, self.now) - self.now
        return wait_s / left_s if left_s > 0 else math.inf
