"""What is asked of the cluster, as its gateways count it and as the launcher reads it.

Pure. The currency is that of `tenants/service_tokens.py`. What a request will make of output is not known
when it comes: it counts as much as requests before it have made, and no more than it asks for. One that is
turned away and comes back while that is remembered counts once (`turned_away.py`). Gateways tell what they
counted since their start and their own clock, so that a row that is missed, late or read twice changes no
rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

import msgspec

from cluster.autoscaling.capacity import ReplicaRate
from cluster.autoscaling.turned_away import TurnedAway
from cluster.waiting.arrival import Arrival
from cluster.waiting.promises import Client
from engine.counters import EngineCounters

FIRST_OUTPUT_TOKENS = 128.0
"""Expected of a request before any has ended."""
OUTPUT_WEIGHT = 0.02
"""Of the request that ended last, in the mean of all."""
STALE_S = 3.0
"""A gateway that has told nothing new for so long is gone."""


class ReplicaWork(msgspec.Struct, frozen=True, array_like=True):
    """One replica as a gateway heard of it last."""

    computed_tokens_total: int
    """Without those that were computed again."""
    queued_tokens: int
    num_running: int
    num_waiting: int

    @classmethod
    def of(cls, counters: EngineCounters) -> ReplicaWork:
        return cls(
            counters.computed_tokens_total - counters.recomputed_tokens_total,
            counters.queued_tokens,
            counters.requests_running,
            counters.requests_waiting,
        )


class GatewayDemand(msgspec.Struct, frozen=True):
    """One gateway's row; totals are in tokens of service since its start."""

    at: float
    """On the gateway's monotonic clock, in seconds."""
    offered_tokens_total: float
    """Of all requests that their tenants' limits let pass, those that were shed, too; each of them once."""
    shed_tokens_total: float
    """Of them those that were shed at their first try."""
    backlog_tokens: float
    """Of what waits in its tenants' queues, with the answers that are expected."""
    answer_tokens: float
    """Output of a request, as expected."""
    replicas: dict[str, ReplicaWork]


class Demand(NamedTuple):
    """Of the whole cluster, now."""

    offered_tokens_per_s: float
    shed_tokens_per_s: float
    backlog_tokens: float
    """Of what waits at gateways and replicas, with the answers that are expected."""
    replicas: Mapping[str, ReplicaRate]

    @property
    def is_any(self) -> bool:
        """Whether anybody asks for anything, or waits for it."""
        works = any(rate.num_running or rate.num_waiting for rate in self.replicas.values())
        return works or self.offered_tokens_per_s > 0 or self.backlog_tokens > 0

    @property
    def is_everyone_full(self) -> bool:
        """Whether requests wait at every replica."""
        return bool(self.replicas) and all(rate.num_waiting for rate in self.replicas.values())


class Visit(NamedTuple):
    """One try of a request."""

    client: Client
    tokens: float
    """Of service, with the answer that is expected; 0 if it was counted before."""
    counted_s: float


class DemandMeter:
    """A gateway's counters of what is offered to it, and its idea of how long answers are."""

    def __init__(self) -> None:
        self.offered_tokens_total = 0.0
        self.shed_tokens_total = 0.0
        self._turned_away = TurnedAway()
        self._output_tokens = FIRST_OUTPUT_TOKENS

    def arrived(self, arrival: Arrival, max_output_tokens: int, now: float) -> Visit:
        """A request that its tenant's limits let pass."""
        client = arrival.share.tenant_id, arrival.claim
        counted_s = self._turned_away.take_back(client, now, says_so=arrival.is_return)
        if counted_s is not None:
            return Visit(client, 0.0, counted_s)
        tokens = arrival.queued.input_service + min(self._output_tokens, max_output_tokens)
        self.offered_tokens_total += tokens
        return Visit(client, tokens, now)

    def turned_away(self, visit: Visit, now: float, retry_after_s: float | None, *, is_shed: bool) -> None:
        """`is_shed`: because the cluster has no room for it, and not because of its tenant's own queue."""
        if is_shed:
            self.shed_tokens_total += visit.tokens
        due_s = now + (retry_after_s or 0.0)
        self._turned_away.add(visit.client, due_s=due_s, counted_s=visit.counted_s)

    def ended(self, num_output_tokens: int) -> None:
        self._output_tokens += OUTPUT_WEIGHT * (num_output_tokens - self._output_tokens)

    def row(
        self, now: float, input_tokens: float, num_waiting: int, replicas: Mapping[str, EngineCounters]
    ) -> GatewayDemand:
        """`input_tokens` are those of the `num_waiting` requests in this gateway's queues."""
        return GatewayDemand(
            at=now,
            offered_tokens_total=self.offered_tokens_total,
            shed_tokens_total=self.shed_tokens_total,
            backlog_tokens=input_tokens + num_waiting * self._output_tokens,
            answer_tokens=self._output_tokens,
            replicas={replica_id: ReplicaWork.of(counters) for replica_id, counters in replicas.items()},
        )


class _Teller:
    """The last two rows of one gateway; one row alone tells no rate."""

    def __init__(self, row: GatewayDemand, now: float) -> None:
        self.before = self.row = row
        self.changed_at = now

    def hear(self, row: GatewayDemand, now: float) -> None:
        if row.at != self.row.at:
            self.before, self.row, self.changed_at = self.row, row, now

    def is_live(self, now: float) -> bool:
        return self.before is not self.row and now - self.changed_at <= STALE_S

    def rate(self, total: str) -> float:
        """Per second, of a total of the row."""
        counted: float = getattr(self.row, total) - getattr(self.before, total)
        return max(0.0, counted) / self._passed_s

    def computed_per_s(self, replica_id: str) -> float | None:
        """None: it was not there in both rows."""
        if replica_id not in self.before.replicas:
            return None
        now, then = self.row.replicas[replica_id], self.before.replicas[replica_id]
        return max(0, now.computed_tokens_total - then.computed_tokens_total) / self._passed_s

    @property
    def _passed_s(self) -> float:
        return max(self.row.at - self.before.at, 1e-3)


class DemandReader:
    """Owns the gateways' last rows, in the launcher, and makes rates of them."""

    def __init__(self) -> None:
        self._tellers: dict[str, _Teller] = {}

    def read(self, rows: Mapping[str, GatewayDemand], now: float) -> Demand | None:
        """`rows` by gateway, as they are now. None: no gateway has told anything twice, and lately."""
        self._tellers = {gateway_id: self._heard(gateway_id, row, now) for gateway_id, row in rows.items()}
        live = [teller for teller in self._tellers.values() if teller.is_live(now)]
        if not live:
            return None
        replicas = {replica_id for teller in live for replica_id in teller.row.replicas}
        answer_tokens = fmean(teller.row.answer_tokens for teller in live)
        queued = sum(_queued_tokens(_told(live, one), answer_tokens) for one in replicas)
        return Demand(
            sum(teller.rate("offered_tokens_total") for teller in live),
            sum(teller.rate("shed_tokens_total") for teller in live),
            sum(teller.row.backlog_tokens for teller in live) + queued,
            {one: _rate(live, one) for one in sorted(replicas)},
        )

    def gone(self, now: float) -> list[str]:
        """Gateways that tell nothing new any more."""
        return [one for one, teller in self._tellers.items() if now - teller.changed_at > STALE_S]

    def _heard(self, gateway_id: str, row: GatewayDemand, now: float) -> _Teller:
        teller = self._tellers.get(gateway_id) or _Teller(row, now)
        teller.hear(row, now)
        return teller


def _told(tellers: list[_Teller], replica_id: str) -> list[ReplicaWork]:
    return [teller.row.replicas[replica_id] for teller in tellers if replica_id in teller.row.replicas]


def _queued_tokens(works: list[ReplicaWork], answer_tokens: float) -> float:
    return max(work.queued_tokens + work.num_waiting * answer_tokens for work in works)


def _rate(tellers: list[_Teller], replica_id: str) -> ReplicaRate:
    """All gateways tell the same replica, each as of another moment."""
    works = _told(tellers, replica_id)
    rates = [
        rate
        for teller in tellers
        if replica_id in teller.row.replicas and (rate := teller.computed_per_s(replica_id)) is not None
    ]
    return ReplicaRate(
        fmean(rates) if rates else 0.0,
        max(work.num_running for work in works),
        min(work.num_waiting for work in works),
    )
