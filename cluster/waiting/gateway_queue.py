"""Who waits at this gateway: who may come in, who is next, who has to go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple

from cluster.generation import PRIORITY
from cluster.served_elsewhere import FlowKey, FlowService
from cluster.waiting.arrival import Arrival
from cluster.waiting.brownout import Brownout
from cluster.waiting.config import WaitingConfig
from cluster.waiting.deadline_watch import DeadlineWatch
from cluster.waiting.door import Door
from cluster.waiting.fleet import Fleet
from cluster.waiting.interactive_line import InteractiveLine
from cluster.waiting.shedding import Fullness, Rejection, Shed
from cluster.waiting.wait_estimate import Wait, WaitEstimator
from tenants.fair_queue import Charge, FairQueue, Share
from tenants.queued import Fits, anyone


class OfferResult(NamedTuple):
    """Of an offer."""

    refused: Rejection | None
    """None: it waits from now on."""
    shed: tuple[Shed, ...] = ()
    """Who has to go for it; nobody for one that is refused."""


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
        self._queue = FairQueue()
        self._door = Door(self._queue, estimator, rng, config)
        self._brownout = Brownout(config)
        self._waiting: dict[str, _Waiting] = {}
        self._shares: dict[FlowKey, Share] = {}
        """Of each tenant that waits, by class, the one it came with last."""
        self._interactive = InteractiveLine()
        self._watch = DeadlineWatch()
        self._late: list[str] = []
        """Their time is over, and nobody was told yet."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def num_promised(self) -> int:
        """Clients that were told to come back and have not yet."""
        return len(self._door.promises)

    @property
    def is_brownout(self) -> bool:
        return self._brownout.is_on

    def backlog(self) -> Mapping[str, int]:
        """Uncached tokens that wait, of each tenant that has any."""
        return self._queue.backlog()

    def see(self, fleet: Fleet, now: float) -> None:
        """The replicas as they are now."""
        self._door.fleet = fleet
        self.estimator.rates.see(fleet, now)
        self._watch.see(now, is_served=fleet.num_replicas > 0)
        self._door.promises.forget_lapsed(now)
        self._see_brownout()

    # --- coming in --------------------------------------------------------------------------

    def max_tokens(self, share: Share, asked: int) -> int:
        """Of its output: fewer than asked for, while the brown-out is on and it is of those that yield."""
        self._see_brownout()
        return self._brownout.max_tokens(share, self._interactive.heaviest, asked)

    def _see_brownout(self) -> None:
        line_s = self.estimator.rates.until_turn_s(self._interactive.work, self._door.fleet)
        self._brownout.see(line_s / self.config.interactive_deadline_s)

    def check(self, arrival: Arrival, now: float) -> Rejection | None:
        """What `offer` would refuse, before anything was taken for it. Nobody is shed, nor has to yield.

        What is cached of its prompt is not known yet, maybe all: its own prefill makes nobody late here.
        """
        self._forget_late(now)
        at_best = replace(arrival, uncached_tokens=0)
        fullness = self._fullness(at_best, now)
        if self._may_come_in(at_best, fullness, now):
            return None
        return self._door.turn_away(arrival, fullness.code, now)

    def offer(self, arrival: Arrival, now: float) -> OfferResult:
        """Raises ValueError for an id that waits already."""
        self._forget_late(now)
        fullness = self._fullness(arrival, now)
        self._door.press(arrival, fullness, now)
        if not self._may_come_in(arrival, fullness, now):
            return OfferResult(self._door.turn_away(arrival, fullness.code, now))
        shed = self._make_room(arrival, fullness, now)
        self._enter(arrival, now)
        return OfferResult(None, shed)

    def _forget_late(self, now: float) -> None:
        self._expire(now)
        self._door.promises.forget_lapsed(now)

    def _fullness(self, arrival: Arrival, now: float) -> Fullness:
        return self._door.forecast(now).fullness(arrival)

    def _may_come_in(self, arrival: Arrival, fullness: Fullness, now: float) -> bool:
        return self._door.is_open(arrival, fullness, now) or self._door.makes_room(arrival, fullness, now)

    def _make_room(self, arrival: Arrival, fullness: Fullness, now: float) -> tuple[Shed, ...]:
        """Of those that stand lower, takes out as many as it must."""
        shed: list[Shed] = []
        while fullness.is_over and (lowest := self._queue.newest_below(arrival.share)) is not None:
            victim = self._waiting[lowest.entry_id].arrival
            self.left(victim.entry_id)
            shed.append(Shed(victim.entry_id, self._door.shed(victim, arrival, now)))
            fullness = self._fullness(arrival, now)
        return tuple(shed)

    def _enter(self, arrival: Arrival, now: float) -> None:
        predicted = self._door.forecast(now).wait(arrival.share)
        self._queue.push(arrival.queued)
        self._door.came_in(arrival, now)
        self._interactive.add(arrival.queued)
        self._waiting[arrival.entry_id] = _Waiting(arrival, now, self._watch.held_s(now), predicted)
        self._shares[_key(arrival.share)] = arrival.share
        turn_by_s = self.estimator.turn_by_s(arrival.queued, arrival.first_token_by_s, now)
        self._watch.add(arrival.entry_id, turn_by_s, arrival.answer_by_s, now)

    # --- leaving ----------------------------------------------------------------------------

    def next(self, now: float, fits: Fits = anyone) -> Arrival | None:
        """Whose turn it is, of those that fit somewhere now; its input is charged.

        Never one whose time is over.
        """
        self._expire(now)
        entry = self._queue.pop(fits)
        if entry is None:
            return None
        waiting = self._forget(entry.entry_id)
        self.estimator.took(entry, self._door.fleet, now)
        self._tell(waiting, now)
        return waiting.arrival

    def charge_of(self, arrival: Arrival) -> Charge:
        """For its input; of one that `next` has given just now."""
        return self._queue.charge_of(arrival.queued)

    def refund(self, charge: Charge) -> None:
        """Once, if it got nothing for it: its client left in its very turn."""
        self._queue.refund(charge)

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
        self._interactive.remove(waiting.arrival.queued)
        self._watch.discard(entry_id)
        share = waiting.arrival.share
        if not self._queue.work_of(share).seats:
            del self._shares[_key(share)]
        return waiting

    # --- what was served --------------------------------------------------------------------

    def served(self, share: Share, output_tokens: int) -> None:
        """To a request that left here, as its output comes."""
        self._queue.charge(share, output_tokens)

    def served_elsewhere(self, served: Iterable[FlowService]) -> None:
        """What replicas gave to other gateways' requests.

        Who does not wait here in that class is charged nothing: it finds no credit when it comes.
        """
        for one in served:
            share = self._shares.get((one.tenant_id, one.priority))
            if share is not None:
                self._queue.charge(share, one.tokens)


def _key(share: Share) -> FlowKey:
    return share.tenant_id, PRIORITY[share.service_class]
