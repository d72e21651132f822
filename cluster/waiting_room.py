"""The requests that wait at a gateway, until each leaves for a replica that has credit for it.

`waiting/gateway_queue.py` decides who may come in, who is next, who has to go; here they are held meanwhile.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import blake2b
from typing import NamedTuple, Protocol

from cluster.api.errors import ApiError, no_capacity, turned_away
from cluster.chooser import Booking
from cluster.credit import Wanted
from cluster.fleet_watch import FleetWatch
from cluster.generation import GenerationRequest
from cluster.routing import ReplicaLoad
from cluster.served_elsewhere import FlowService
from cluster.waiting.arrival import Arrival, wanted_by
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.shedding import Rejection
from tenants.fair_queue import Charge
from tenants.queued import Share

KNOWN_BY_TOKENS = 4096
"""Of a prompt's end, by which a client that asks again is known."""

Book = Callable[[Sequence[ReplicaLoad]], Booking]
"""Chooses one of the replicas that have credit, and takes it there."""
WithCredit = Callable[[Wanted | None], Sequence[ReplicaLoad]]
"""The replicas that this may be sent to now; None: that something may."""


class RoomObserver(Protocol):
    """What is counted of waiting; `cluster/waiting_metrics.py` does."""

    def observe_turn(self, share: Share, waited_s: float) -> None: ...

    def count_turned_away(self, share: Share, code: str) -> None: ...


class _Turn(NamedTuple):
    booking: Booking
    charge: Charge


class _Waiter(NamedTuple):
    arrival: Arrival
    book: Book
    turn: asyncio.Future[_Turn]


class WaitingRoom:
    """Owns who waits here. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        queue: GatewayQueue,
        with_credit: WithCredit,
        watch: FleetWatch,
        clock: Callable[[], float],
        observer: RoomObserver,
    ) -> None:
        self._queue = queue
        self._with_credit = with_credit
        self._watch = watch
        self._clock = clock
        self._observer = observer
        self._waiting: dict[str, _Waiter] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_start_expected(self) -> bool:
        """Whether waiting makes sense while no replica takes work."""
        return self._watch.is_start_expected

    def arrivals(self) -> list[Arrival]:
        return [waiter.arrival for waiter in self._waiting.values()]

    # --- coming in ---------------------------------------------------------------------------

    def max_tokens(self, asked: GenerationRequest) -> int:
        """Of its output: fewer than asked for, while answers are shortened lest somebody be turned away."""
        max_tokens = self._queue.max_tokens(asked.share, asked.sampling.max_tokens)
        return max(max_tokens, asked.sampling.min_tokens)

    def arrival(self, asked: GenerationRequest, cached_tokens: int) -> Arrival:
        terms, config = asked.account.terms, self._queue.config
        return Arrival(
            entry_id=asked.request_id,
            share=asked.share,
            uncached_tokens=len(asked.prompt_token_ids) - cached_tokens,
            cached_tokens=cached_tokens,
            first_token_by_s=config.first_token_by_s(asked.service_class, asked.arrived, asked.deadline),
            answer_by_s=asked.deadline,
            num_siblings=asked.n,
            max_queue_len=terms.max_queue_len,
            claim=_claim(asked.prompt_token_ids),
            is_return=asked.is_return,
        )

    def check(self, arrival: Arrival) -> None:
        """Before anything is taken for it. Raises `ApiError` 429 or 503."""
        self._watch.look_if_due()
        refused = self._queue.check(arrival, self._clock())
        if refused is not None:
            raise self._turned_away(arrival.share, refused)

    async def turn(self, arrival: Arrival, book: Book) -> Booking:
        """What `book` took for it, once it was its turn. Raises `ApiError` 429 or 503."""
        if self._is_closed:
            raise _closed()
        self._watch.look_if_due()
        began_s = self._clock()
        refused, shed = self._queue.offer(arrival, began_s)
        for victim in shed:
            self._end(victim.entry_id, self._turned_away(self._share(victim.entry_id), victim.told))
        if refused is not None:
            raise self._turned_away(arrival.share, refused)
        waiter = _Waiter(arrival, book, asyncio.get_running_loop().create_future())
        self._waiting[arrival.entry_id] = waiter
        self.let_go()
        try:
            turn = await waiter.turn
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        self._observer.observe_turn(arrival.share, self._clock() - began_s)
        return turn.booking

    def _withdraw(self, waiter: _Waiter) -> None:
        """Its client has left, maybe in its very turn."""
        if self._waiting.pop(waiter.arrival.entry_id, None) is not None:
            self._queue.left(waiter.arrival.entry_id)
        elif not waiter.turn.cancelled() and waiter.turn.exception() is None:
            booking, charge = waiter.turn.result()
            self._queue.refund(charge)  # first: what is given back lets the next one go
            booking.give_back()

    # --- leaving -----------------------------------------------------------------------------

    def let_go(self) -> None:
        """All whose turn it is and for whom a replica has credit."""
        now = self._clock()
        while self._waiting and self._with_credit(None):
            if not self._let_next_go(now):
                break
        self._end_late(now)

    def _let_next_go(self, now: float) -> bool:
        """Whether it was anybody's turn."""
        there = cache(self._with_credit)  # asked once more, a replica might have fallen silent meanwhile
        arrival = self._queue.next(now, lambda entry: bool(there(wanted_by(entry))))
        if arrival is None:
            return False
        waiter, charge = self._waiting.pop(arrival.entry_id), self._queue.charge_of(arrival)
        if waiter.turn.done():  # its client has left in this turn of the loop
            self._queue.refund(charge)
            return True
        try:
            waiter.turn.set_result(_Turn(waiter.book(there(wanted_by(arrival.queued))), charge))
        except Exception as error:  # its own: who calls is a link, which must not break of it
            self._queue.refund(charge)
            waiter.turn.set_exception(error)
        return True

    def dismiss(self, entry_id: str, reason: Callable[[], ApiError]) -> None:
        """If it waits."""
        if self._queue.left(entry_id):
            self._end(entry_id, reason())

    def close(self) -> None:
        """Nobody's turn comes any more."""
        self._is_closed = True
        for entry_id in list(self._waiting):
            self.dismiss(entry_id, _closed)
        self._end_late(self._clock())

    def _end_late(self, now: float) -> None:
        for entry_id in self._queue.expire(now):
            if entry_id in self._waiting:  # else its client has left since its time was over
                told = Rejection(503, "deadline_exceeded", None)
                self._end(entry_id, self._turned_away(self._share(entry_id), told))
        self._set_alarm()

    def _end(self, entry_id: str, error: ApiError) -> None:
        turn = self._waiting.pop(entry_id).turn
        if not turn.done():
            turn.set_exception(error)

    def _share(self, entry_id: str) -> Share:
        return self._waiting[entry_id].arrival.share

    def _turned_away(self, share: Share, told: Rejection) -> ApiError:
        self._observer.count_turned_away(share, told.code)
        return turned_away(told.status, told.code, told.retry_after_s)

    def _set_alarm(self) -> None:
        """For the next one whose time will be over."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due_s = self._queue.next_deadline()
        if due_s is not None:
            delay_s = max(0.0, due_s - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self.let_go)

    # --- what is heard -----------------------------------------------------------------------

    def served(self, share: Share, output_tokens: int) -> None:
        """To a request that left here, as its output comes."""
        if self._waiting:
            self._queue.served(share, output_tokens)

    def first_token_came(self, asked: GenerationRequest, uncached_tokens: int, after_turn_s: float) -> None:
        """Of a request that left here."""
        self._queue.estimator.first_token_came(asked.share, uncached_tokens, after_turn_s)

    def served_elsewhere(self, served: Iterable[FlowService]) -> None:
        """As links tell it."""
        self._queue.served_elsewhere(served)

    async def look(self) -> None:
        """To be called every `fleet_watch.LOOK_EVERY_S`."""
        self._watch.look()
        self._watch.report(self.arrivals())
        self.let_go()


def _closed() -> ApiError:
    return no_capacity("This gateway is ending; try again.")


def _claim(prompt_token_ids: Sequence[int]) -> bytes:
    end = array("Q", prompt_token_ids[-KNOWN_BY_TOKENS:])
    return blake2b(end.tobytes(), digest_size=8).digest()
