"""One gateway's queue before production schedulers, in virtual time, and clients that come back when told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, NamedTuple

from cluster.waiting.arrival import Arrival
from cluster.waiting.config import WaitingConfig
from cluster.waiting.fleet import Fleet
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.shedding import Rejection
from cluster.waiting.wait_estimate import WaitEstimator
from engine.request import RequestOutput
from engine.scheduler import Scheduler
from tenants.fair_queue import Share
from tests.builders import answer, make_request, make_scheduler

STEP_S = 0.05
CONFIG = WaitingConfig()
PAID = Share("paid", 4, "interactive")
FREE = Share("free", 1, "interactive")
BATCH = Share("nightly", 4, "batch")


def an_arrival(
    entry_id: str = "r",
    share: Share = PAID,
    tokens: int = 100,
    *,
    now: float = 0.0,
    config: WaitingConfig = CONFIG,
    timeout_s: float = 600.0,
    **fields: Any,
) -> Arrival:
    by_s = config.first_token_by_s(share.service_class, now, now + timeout_s)
    plain: dict[str, Any] = {
        "first_token_by_s": by_s,
        "answer_by_s": now + timeout_s,
        "claim": entry_id.encode(),
    }
    return Arrival(entry_id, share, tokens, **plain | fields)


@dataclass(frozen=True)
class Ask:
    """What a client sends."""

    share: Share
    prompt_tokens: int
    max_tokens: int


class Visit(NamedTuple):
    """One try of a client."""

    at: float
    number: int
    """Of the client."""
    ask: Ask
    tries: int
    """Before this one."""


@dataclass
class Seen:
    """What became of all visits."""

    entered: list[Visit] = field(default_factory=list)
    refused: list[tuple[Visit, int | None]] = field(default_factory=list)
    shed: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Predicted and actual."""
    first_token_s: dict[str, float] = field(default_factory=dict)
    """From the visit that got in."""
    served_tokens: Counter[str] = field(default_factory=Counter)
    """Of output, by tenant."""

    def returned(self, share: Share | None = None) -> list[bool]:
        """Of each visit that came when it was told: whether it got in."""
        came = [(visit, True) for visit in self.entered]
        came += [(visit, False) for visit, _ in self.refused]
        return [is_in for visit, is_in in came if visit.tries and share in (None, visit.ask.share)]


class WaitingRig:
    """`num_replicas` alike. Each takes requests of the queue while a seat is free and less than two steps of
    prompt tokens are there: what credit grants, with a lead of one request.
    """

    def __init__(
        self,
        *,
        num_replicas: int = 2,
        num_seats: int = 16,
        step_tokens: int = 256,
        config: WaitingConfig = CONFIG,
        comes_back: bool = True,
        max_queue_len: int | None = None,
    ) -> None:
        """`max_queue_len` of each tenant."""
        self.seen = Seen()
        self.estimator = WaitEstimator(lambda *wait: self.seen.waits.append(wait))
        self.queue = GatewayQueue(self.estimator, Random(1), config)
        self.now = 0.0
        self._num_seats = num_seats
        self._step_tokens = step_tokens
        self._comes_back = comes_back
        self._max_queue_len = max_queue_len
        self._replicas = {f"replica-{n}": self._start() for n in range(num_replicas)}
        self._visits: list[tuple[float, int, Visit]] = []
        self._order = count()
        self._running: dict[str, Visit] = {}
        self._waiting: dict[str, Visit] = {}
        self._turn_s: dict[str, float] = {}

    def _start(self) -> Scheduler:
        return make_scheduler(
            num_blocks=20_000,
            max_num_seqs=self._num_seats,
            max_num_batched_tokens=self._step_tokens,
        )

    def come(self, visits: Iterable[Visit]) -> None:
        for visit in visits:
            heappush(self._visits, (visit.at, next(self._order), visit))

    def run(
        self, until: float, on_done: Callable[[Visit, float], Visit | None] = lambda visit, now: None
    ) -> Seen:
        """`on_done`: the client's next visit, once its answer is complete."""
        self._on_done = on_done
        while self.now < until:
            self._see()
            while self._visits and self._visits[0][0] <= self.now:
                self._visit(heappop(self._visits)[2])
            self.seen.expired += self._gone(self.queue.expire(self.now))
            self._dispatch()
            self._step()
            self.now += STEP_S
        return self.seen

    def _see(self) -> None:
        num_seats = self._num_seats * len(self._replicas)
        free = sum(max(0, self._free_seats(one)) for one in self._replicas.values())
        self.queue.see(Fleet(len(self._replicas), num_seats, free), self.now)

    def _free_seats(self, scheduler: Scheduler) -> int:
        counters = scheduler.counters()
        return self._num_seats - counters.requests_running - counters.requests_waiting

    def _visit(self, visit: Visit) -> None:
        entry_id = f"{visit.number}.{visit.tries}"
        arrival = an_arrival(
            entry_id,
            visit.ask.share,
            visit.ask.prompt_tokens,
            now=self.now,
            config=self.queue.config,
            claim=str(visit.number).encode(),
            max_queue_len=self._max_queue_len,
        )
        outcome = self.queue.offer(arrival, self.now)
        for shed in outcome.shed:
            self.seen.shed.append(shed.entry_id)
            self._come_back(self._waiting.pop(shed.entry_id), shed.told)
        if outcome.refused is None:
            self.seen.entered.append(visit)
            self._waiting[entry_id] = visit
        else:
            self.seen.refused.append((visit, outcome.refused.retry_after_s))
            self._come_back(visit, outcome.refused)

    def _come_back(self, visit: Visit, told: Rejection) -> None:
        if self._comes_back and told.retry_after_s is not None:
            at = self.now + told.retry_after_s
            self.come([visit._replace(at=at, tries=visit.tries + 1)])

    def _gone(self, entry_ids: list[str]) -> list[str]:
        for entry_id in entry_ids:
            del self._waiting[entry_id]
        return entry_ids

    def _dispatch(self) -> None:
        for scheduler in self._replicas.values():
            while self._has_credit(scheduler) and (arrival := self.queue.next(self.now)) is not None:
                visit = self._running[arrival.entry_id] = self._waiting.pop(arrival.entry_id)
                self._turn_s[arrival.entry_id] = self.now
                request = make_request(
                    arrival.entry_id,
                    range(visit.number << 10, (visit.number << 10) + visit.ask.prompt_tokens),
                    max_tokens=visit.ask.max_tokens,
                    ignore_eos=True,
                )
                scheduler.add(request, self.now)

    def _has_credit(self, scheduler: Scheduler) -> bool:
        counters = scheduler.counters()
        seats = counters.requests_running + counters.requests_waiting
        return seats < self._num_seats + 1 and counters.queued_tokens < 2 * self._step_tokens

    def _step(self) -> None:
        for replica_id, scheduler in self._replicas.items():
            if scheduler.has_work():
                plan = scheduler.schedule(self.now)
                for output in scheduler.update(plan, answer(plan), self.now + STEP_S):
                    self._take(output)
            self.estimator.rates.observe(replica_id, scheduler.counters(), self.now + STEP_S)

    def _take(self, output: RequestOutput) -> None:
        visit, end = self._running[output.request_id], self.now + STEP_S
        if output.first_output_index == 0:
            self.seen.first_token_s[output.request_id] = end - visit.at
            after_turn_s = end - self._turn_s.pop(output.request_id)
            self.estimator.first_token_came(visit.ask.share, visit.ask.prompt_tokens, after_turn_s)
        self.seen.served_tokens[visit.ask.share.tenant_id] += len(output.token_ids)
        self.queue.served(visit.ask.share, len(output.token_ids))
        if output.timing is not None:
            self.estimator.rates.ended(output.timing.prefill_s + output.timing.decode_s, end)
            del self._running[output.request_id]
            following = self._on_done(visit, end)
            if following is not None:
                self.come([following])
