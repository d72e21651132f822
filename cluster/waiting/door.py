"""The door of a gateway's queue: decides who comes in, for whom others go, and what who may not is told."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

from cluster.waiting.arrival import Arrival
from cluster.waiting.config import WaitingConfig
from cluster.waiting.fleet import NOBODY, Fleet
from cluster.waiting.forecast import Forecast
from cluster.waiting.promises import Promises
from cluster.waiting.shedding import (
    HALF,
    LOW,
    MAX_RETRY_AFTER_S,
    TARGET,
    YIELD_S,
    Fullness,
    Rejection,
    retry_after_s,
    until_shorter_s,
)
from cluster.waiting.wait_estimate import WaitEstimator
from tenants.fair_queue import FairQueue


class _Pressed(NamedTuple):
    """Somebody of that standing was kept out by those that stand lower."""

    standing: tuple[bool, int]
    until_s: float

    def is_above(self, arrival: Arrival, now: float) -> bool:
        return now < self.until_s and arrival.share.standing < self.standing


class Door:
    """Owns what was promised to those who were turned away, and who yields at the moment.

    Of the queue it only reads.
    """

    def __init__(
        self, queue: FairQueue, estimator: WaitEstimator, rng: Random, config: WaitingConfig
    ) -> None:
        self.promises = Promises()
        self.fleet: Fleet = NOBODY
        self._queue = queue
        self._estimator = estimator
        self._rng = rng
        self._config = config
        self._pressed = _Pressed(standing=(False, 0), until_s=-math.inf)

    def forecast(self, now: float) -> Forecast:
        return Forecast(self._queue, self._estimator, self.fleet, self._config, now)

    def is_open(self, arrival: Arrival, fullness: Fullness, now: float) -> bool:
        """Whether it may come in to a line that is so full with it."""
        if fullness.is_over or self._pressed.is_above(arrival, now):
            return False
        num_ahead = len(self._queue) - self._queue.num_below(arrival.share)
        is_let_in = fullness.most <= self._lets_in_up_to(arrival, now) or not num_ahead
        return is_let_in or not self._is_booked(arrival, now)

    def makes_room(self, arrival: Arrival, fullness: Fullness, now: float) -> bool:
        """Whether it may not come in, but may once those in line that stand lower have gone."""
        if not fullness.is_over:
            return False
        return self.is_open(arrival, self.forecast(now).fullness(arrival, without_lower=True), now)

    def _lets_in_up_to(self, arrival: Arrival, now: float) -> float:
        """How full the line may be with it, whoever else was told to come.

        Whether one comes at its time that was told elsewhere nobody knows here. One that was told here and
        comes before it is as anybody, whatever it says: SDKs wait a minute at most.
        """
        promise = self.promises.of(arrival)
        if promise is not None and promise.is_due(now):
            return 1.0
        is_told_elsewhere = arrival.is_return and (promise is None or not arrival.claim)
        return HALF if is_told_elsewhere else LOW

    def _is_booked(self, arrival: Arrival, now: float) -> bool:
        """Whether it would be late, or too many, behind those of its tenant that were told to come back.

        Other tenants' take no more than their share, and who stands lower makes room.
        """
        expected = self.promises.expected(arrival.share)
        if not expected.num_requests:
            return False
        forecast = self.forecast(now)
        return forecast.fullness(arrival, without_lower=True, lower_yield=True, besides=expected).is_over

    def press(self, arrival: Arrival, fullness: Fullness, now: float) -> None:
        """Those who stand lower yield at the door from now on, if they keep it out: in line, or as they came.

        Not for a tenant whose own line is too long: it would be late all the same.
        """
        if not fullness.is_over:
            return
        alone = self.forecast(now).fullness(arrival, without_lower=True, lower_yield=True)
        if self.is_open(arrival, alone, now):
            self._pressed = _Pressed(arrival.share.standing, now + YIELD_S)

    def came_in(self, arrival: Arrival, now: float) -> None:
        promise = self.promises.of(arrival)
        if promise is not None and (arrival.claim or promise.is_due(now)):
            self.promises.close(promise)

    def turn_away(self, arrival: Arrival, code: tuple[int, str], now: float) -> Rejection:
        """A client that came before its time is told the same time again."""
        if min(arrival.first_token_by_s, arrival.answer_by_s) <= now:
            return Rejection(503, "deadline_exceeded", None)
        promise = self.promises.of(arrival)
        if promise is not None and arrival.claim and not promise.is_due(now):
            return Rejection(*code, math.ceil(promise.due_s - now))
        if promise is not None and promise.is_due(now):
            self.promises.close(promise)
        return Rejection(*code, self._promise(arrival, now, self._until_s(arrival, now)))

    def shed(self, victim: Arrival, above: Arrival, now: float) -> Rejection:
        """What one is told that has to go: not to be back before the line is shorter for `above`, too."""
        drain_s = self.forecast(now).wait(above.share).drain_s
        until_s = max(self._until_s(victim, now), (1 - TARGET) * drain_s)
        return Rejection(503, "overloaded", self._promise(victim, now, until_s))

    def _until_s(self, arrival: Arrival, now: float) -> float:
        """Until the line is shorter, and those of its share that were told a time before have come."""
        by_s = min(arrival.first_token_by_s, arrival.answer_by_s)
        time_left_s = self._estimator.turn_by_s(arrival.queued, by_s, now) - now
        wait = self.forecast(now).wait(arrival.share)
        in_turn_s = self.promises.last_place_s(arrival.share) - now
        in_turn_s += self._estimator.apart_s(arrival.queued, self.fleet, now)
        return max(until_shorter_s(wait, time_left_s), in_turn_s)

    def _promise(self, arrival: Arrival, now: float, until_s: float) -> int:
        after_s = retry_after_s(until_s, self._rng)
        if until_s < MAX_RETRY_AFTER_S:
            self.promises.make(arrival, place_s=now + until_s, due_s=now + after_s)
        return after_s
