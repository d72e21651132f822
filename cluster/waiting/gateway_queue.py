"""Who waits at this gateway: who may come in, who is next, who has to go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from cluster.waiting.arrival import Arrival
from cluster.waiting.brownout import Brownout
from cluster.waiting.config import WaitingConfig
from cluster.waiting.deadline_watch import DeadlineWatch
from cluster.waiting.fleet import NOBODY, Fleet
from cluster.waiting.forecast import Forecast
from cluster.waiting.interactive_line import InteractiveLine
from cluster.waiting.promises import Promises
from cluster.waiting.shedding import (
    MAX_RETRY_AFTER_S,
    TARGET,
    Fullness,
    Refused,
    Shed,
    retry_after_s,
    until_shorter_s,
)
from cluster.waiting.wait_estimate import Wait, WaitEstimator
from tenants.fair_queue import FairQueue, Share


class Outcome(NamedTuple):
    """Of an offer. Who was shed for it has to go, also if that did not suffice."""

    refused: Refused | None
    """None: it waits from now on."""
    shed: tuple[Shed, ...] = ()


class _Waiting(NamedTuple):
    arrival: Arrival
    since_s: float
    held_s: float
    """Of the watch, then."""
    predicted: Wait


class GatewayQueue:
    """Owns the requests that wait at one gateway. Pure: told the time, in seconds of any steady clock.

    What came in leaves exactly once: by `next`, by `left`, by `expire`, or as `Shed`. To give back what it
    took of its tenant's limits is the caller's part.
    """

    def __init__(self, estimator: WaitEstimator, rng: Random, config: WaitingConfig) -> None:
        self.estimator = estimator
        self.config = config
        self._rng = rng
        self._brownout = Brownout(config)
        self._fleet = NOBODY
        self._queue = FairQueue()
        self._waiting: dict[str, _Waiting] = {}
        self._shares: dict[str, Share] = {}
        """Of each tenant that waits, the one it came with last."""
        self._interactive = InteractiveLine()
        self._promises = Promises()
        self._watch = DeadlineWatch()
        self._late: list[str] = []
        """Their time is over, and nobody was told yet."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def num_promised(self) -> int:
        """Clients that were told to come back and have not yet."""
        return len(self._promises)

    @property
    def is_brownout(self) -> bool:
        return self._brownout.is_on

    def backlog(self) -> Mapping[str, int]:
        """Uncached tokens that wait, of each tenant that has any."""
        return self._queue.backlog()

    def see(self, fleet: Fleet, now: float) -> None:
        """The replicas as they are now."""
        self._fleet = fleet
        self._watch.see(now, is_served=fleet.num_replicas > 0)

    # --- coming in --------------------------------------------------------------------------

    def max_tokens(self, share: Share, asked: int) -> int:
        """Of its output: fewer than asked for, while the brown-out is on and it is of those that yield."""
        line = self._interactive
        line_s = self.estimator.rates.until_turn_s(line.work, self._fleet)
        self._brownout.see(line_s / self.config.interactive_deadline_s)
        return self._brownout.max_tokens(share, line.heaviest, asked)

    def check(self, arrival: Arrival, now: float) -> Refused | None:
        """What `offer` would refuse, before anything was taken for it. Nobody is shed."""
        self._forget_late(now)
        fullness = self._fullness(arrival, now)
        if self._has_room(arrival, fullness, now) or self._whom_to_shed(arrival, fullness, now):
            return None
        return self._turn_away(arrival, fullness.code, now)

    def offer(self, arrival: Arrival, now: float) -> Outcome:
        """Raises ValueError for an id that waits already."""
        self._forget_late(now)
        shed: list[Shed] = []
        fullness = self._fullness(arrival, now)
        while victim := self._whom_to_shed(arrival, fullness, now):
            shed.append(self._shed(victim, arrival, now))
            fullness = self._fullness(arrival, now)
        if not self._has_room(arrival, fullness, now):
            return Outcome(self._turn_away(arrival, fullness.code, now), tuple(shed))
        self._enter(arrival, now)
        return Outcome(None, tuple(shed))

    def _forget_late(self, now: float) -> None:
        self._expire(now)
        self._promises.forget_lapsed(now)

    def _forecast(self, now: float) -> Forecast:
        return Forecast(self.estimator, self._fleet, self.config, now)

    def _fullness(self, arrival: Arrival, now: float, *, without_lower: bool = False) -> Fullness:
        return self._forecast(now).fullness(
            self._queue, arrival, num_all=len(self._queue), without_lower=without_lower
        )

    def _has_room(self, arrival: Arrival, fullness: Fullness, now: float) -> bool:
        promise = self._promises.of(arrival)
        is_expected = arrival.is_return or (promise is not None and promise.is_due(now))
        if fullness.is_over or fullness.is_low or is_expected:
            return not fullness.is_over
        return not self._is_booked(arrival, now)

    def _is_booked(self, arrival: Arrival, now: float) -> bool:
        """Whether it would be late, or too many, behind those of its tenant that were told to come back.

        Other tenants' take no more than their share, and who stands lower makes room.
        """
        share, line = arrival.share, self._promises.line
        num_promised = line.num_of(share.tenant_id) - self._queue.num_of(share.tenant_id)
        if not num_promised:
            return False
        num_waiting = 0 if self._queue.newest_below(share) else len(self._queue)
        num_all = num_waiting + num_promised
        return self._forecast(now).fullness(line, arrival, num_all=num_all, without_lower=True).is_over

    def _whom_to_shed(self, arrival: Arrival, fullness: Fullness, now: float) -> Arrival | None:
        """None, too, if it would be late all the same."""
        victim = self._queue.newest_below(arrival.share) if fullness.is_over else None
        if victim is None or fullness.of_tenant > 1:
            return None
        if self._fullness(arrival, now, without_lower=True).of_time > 1:
            return None
        return self._waiting[victim.entry_id].arrival

    def _enter(self, arrival: Arrival, now: float) -> None:
        promise = self._promises.of(arrival)
        if promise is not None and (arrival.claim or promise.is_due(now)):
            self._promises.close(promise)
        predicted = self._forecast(now).wait_in(self._queue, arrival.share)
        self._queue.push(arrival.queued)
        self._promises.line.push(arrival.queued)
        self._interactive.add(arrival.queued)
        self._waiting[arrival.entry_id] = _Waiting(arrival, now, self._watch.held_s(now), predicted)
        self._shares[arrival.share.tenant_id] = arrival.share
        self._watch.add(arrival.entry_id, arrival.first_token_by_s, arrival.answer_by_s, now)

    # --- being turned away ------------------------------------------------------------------

    def _shed(self, victim: Arrival, above: Arrival, now: float) -> Shed:
        """It is not to be back before the line is shorter for `above`, too."""
        drain_s = self._forecast(now).wait_in(self._queue, above.share).drain_s
        self.left(victim.entry_id)
        told = self._turn_away(victim, (503, "overloaded"), now, least_s=(1 - TARGET) * drain_s)
        return Shed(victim.entry_id, told)

    def _turn_away(
        self, arrival: Arrival, code: tuple[int, str], now: float, *, least_s: float = 0.0
    ) -> Refused:
        """A client that came before its time is told the same time again."""
        time_left_s = min(arrival.first_token_by_s, arrival.answer_by_s) - now
        if time_left_s <= 0:
            return Refused(503, "deadline_exceeded", None)
        promise = self._promises.of(arrival)
        if promise is not None and arrival.claim and not promise.is_due(now):
            return Refused(*code, math.ceil(promise.due_s - now))
        if promise is not None and promise.is_due(now):
            self._promises.close(promise)
        wait = self._forecast(now).wait_in(self._promises.line, arrival.share)
        in_turn_s = self._promises.last_place_s(arrival.share) - now
        in_turn_s += self.estimator.apart_s(arrival.queued, self._fleet, now)
        until_s = max(until_shorter_s(wait, time_left_s), in_turn_s, least_s)
        after_s = retry_after_s(until_s, self._rng)
        if until_s < MAX_RETRY_AFTER_S:
            self._promises.make(arrival, place_s=now + until_s, due_s=now + after_s)
        return Refused(*code, after_s)

    # --- leaving ----------------------------------------------------------------------------

    def next(self, now: float) -> Arrival | None:
        """Whose turn it is; its input is charged. Never one whose time is over."""
        self._expire(now)
        entry = self._queue.pop()
        if entry is None:
            return None
        waiting = self._forget(entry.entry_id)
        self.estimator.took(entry, self._fleet, now)
        self._tell(waiting, now)
        return waiting.arrival

    def left(self, entry_id: str) -> bool:
        """It was cancelled: nothing is charged. Whether it waited."""
        if self._queue.remove(entry_id) is None:
            return False
        self._forget(entry_id)
        return True

    def expire(self, now: float) -> list[str]:
        """Those that can no longer be in time: each is told once."""
        self._expire(now)
        late, self._late = self._late, []
        return late

    def next_deadline(self) -> float | None:
        """When `expire` will have something to tell; None: not as things are."""
        return -math.inf if self._late else self._watch.next_s()

    def _expire(self, now: float) -> None:
        for entry_id in self._watch.take_due(now):
            self._queue.remove(entry_id)
            self._tell(self._forget(entry_id), now)
            self._late.append(entry_id)

    def _tell(self, waiting: _Waiting, now: float) -> None:
        held_s = self._watch.held_s(now) - waiting.held_s
        actual_s = now - waiting.since_s - held_s
        self.estimator.told(waiting.arrival.share, waiting.predicted, actual_s, now)

    def _forget(self, entry_id: str) -> _Waiting:
        """Once it is out of the queue."""
        waiting = self._waiting.pop(entry_id)
        self._promises.line.remove(entry_id)
        self._interactive.remove(waiting.arrival.queued)
        self._watch.discard(entry_id)
        tenant_id = waiting.arrival.share.tenant_id
        if not self._queue.num_of(tenant_id):
            del self._shares[tenant_id]
        return waiting

    # --- what was served --------------------------------------------------------------------

    def served(self, share: Share, output_tokens: int) -> None:
        """To a request that left here, as its output comes."""
        self._queue.charge(share, output_tokens)

    def served_elsewhere(self, tokens: Mapping[str, float]) -> None:
        """Tokens of service, by tenant, that replicas gave to other gateways' requests.

        Who does not wait here is charged nothing: it finds no credit when it comes.
        """
        for tenant_id, num_tokens in tokens.items():
            if tenant_id in self._shares:
                self._queue.charge(self._shares[tenant_id], num_tokens)
