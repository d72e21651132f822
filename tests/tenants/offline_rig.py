"""What tests of the time without the record have in common: asks, tiers, and how a tenant stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

from tenants.ledger import money
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Gauge, Granted, Kind, Refused, Standing
from tenants.ledger.ledger import RENEW_EVERY_S
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.settlement import Outcome, Settlement
from tenants.ledger.windows import to_us
from tenants.offline.offline_ledger import OfflineLedger
from tenants.offline.prepaid import Prepaid
from tenants.store import StoreUnavailable
from tenants.terms import Limits, Prices, Terms
from tests.builders_tenants import FakeClock

NOON = 1_700_049_600.0
"""2023-11-15 12:00 UTC."""
FIRST_DAY, LAST_DAY = "2023-11-01", "2023-11-30"
A_TOKEN = Prices(input=10**6, cached_input=10**6, output=10**6)
"""One micro-unit each."""
SERVE = Terms(offline="serve")
REFUSE = Terms(offline="refuse")


def an_ask(request_id: str = "r", *limits: Limits, **fields: Any) -> Ask:
    """Of tenant acme; `limits`: the tenant's, then those of its key, if any."""
    plain: dict[str, Any] = {
        "request_id": request_id,
        "tenant_id": "acme",
        "key_id": "key_1",
        "model": "tiny",
        "gateway_id": "g1",
        "started_at": NOON,
        "scopes": tuple(map(Scope, (None, "key_1"), limits or (Limits(),))),
        "prices": A_TOKEN,
        "prompt_tokens": 10,
        "n": 1,
        "max_tokens": 20,
    }
    return Ask(**plain | fields)


def a_settlement(ask: Ask, outcome: Outcome = "finished", completion_tokens: int = 0) -> Settlement:
    """Of a request that cost its whole prompt and what it made, unless it never ran."""
    tokens = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": completion_tokens}
    if outcome == "unserved":
        tokens = {"prompt_tokens": 0, "completion_tokens": 0}
    return Settlement(
        request_id=ask.request_id,
        tenant_id=ask.tenant_id,
        key_id=ask.key_id,
        model=ask.model,
        gateway_id=ask.gateway_id,
        started_at=ask.started_at,
        ended_at=ask.started_at + 1,
        outcome=outcome,
        n=ask.n,
        cached_tokens=0,
        cost=money.cost(ask.prices, **tokens),
        **tokens,
    )


def left_of(**remaining: int) -> Standing:
    """Gauges by kind; what the limit itself is does not matter here."""
    kinds: dict[Kind, int] = {**remaining}
    return Standing(
        tuple(
            Gauge(kind=kind, key_id=None, limit=10**9, remaining=left, reset_s=0.0)
            for kind, left in kinds.items()
        )
    )


class HardOfHearing(MemoryLedger):
    """A ledger whose answers to `reserve` may get lost."""

    is_deaf = False

    async def reserve(self, ask: Ask) -> Granted | Refused:
        answer = await super().reserve(ask)
        if self.is_deaf:
            raise StoreUnavailable("the answer came too late", "timeout")
        return answer


class Outage:
    """One gateway's purses and its offline ledger, and the record that it is cut off from at times.

    What it settles waits in `spool` until the record can be told.
    """

    def __init__(self, began: float = NOON) -> None:
        self.clock = FakeClock(began)
        self.num_gateways = 1
        self.is_away = False
        self.record = HardOfHearing(self._now_us)
        self.spool: list[Settlement] = []
        self.disk_fault: BaseException | None = None
        """Raised by the spool, after the record was told in its stead."""
        self.last_ask = an_ask()
        self._num_applied = 0
        self._ids = count(1)
        self.prepaid = Prepaid(self.record, self._settle, self.clock, self.clock, lambda: self._id("purse"))
        self.offline = OfflineLedger(self.prepaid, lambda: self.num_gateways, self._now_us)

    async def ask(self, *limits: Limits, **fields: Any) -> Granted | Refused:
        """Of this gateway, while the record is away."""
        self.last_ask = an_ask(self._id("r"), *limits, **{"started_at": self.clock.now} | fields)
        return await self.offline.reserve(self.last_ask, SERVE)

    async def end(self, ask: Ask | None = None, completion_tokens: int = 0) -> None:
        settlement = a_settlement(ask or self.last_ask, completion_tokens=completion_tokens)
        self.offline.ended(settlement)
        await self._settle(settlement)

    async def answered(self, *limits: Limits) -> None:
        """The record let a request of this gateway in, which never ran."""
        ask = an_ask(self._id("r"), *limits, started_at=self.clock.now)
        answer = await MemoryLedger.reserve(self.record, ask)
        await self.record.settle([a_settlement(ask, "unserved")])
        self.prepaid.saw(ask, answer.standing)

    async def tick(self) -> None:
        self.clock.advance(RENEW_EVERY_S)
        if self.is_away:
            await self.offline.tick()
        else:
            await self.prepaid.tick()

    async def earn_purses(self, *limits: Limits) -> None:
        for _ in range(2):
            await self.answered(*limits)
            await self.tick()

    async def back(self) -> None:
        self.is_away = False
        self.offline.record_is_back()
        await self._apply()

    async def others_take(self, limits: Limits, max_tokens: int) -> bool:
        """Another gateway reaps what is dead, and spends what the record grants it; whether it did."""
        await self.record.reap()
        fields = {"started_at": self.clock.now, "max_tokens": max_tokens, "prompt_tokens": 0}
        ask = an_ask(self._id("other"), limits, **fields)
        granted = await MemoryLedger.reserve(self.record, ask)
        if isinstance(granted, Granted):
            await self.record.settle([a_settlement(ask, completion_tokens=granted.max_tokens)])
        return isinstance(granted, Granted)

    async def others_take_all(self, limits: Limits) -> None:
        for max_tokens in (10**6, 1):
            while await self.others_take(limits, max_tokens):
                pass

    async def available(self, limits: Limits) -> int:
        standing = await self.record.standing("acme", "tiny", [Scope(None, limits)])
        gauge = standing.tightest("budget_day")
        assert gauge is not None
        return gauge.remaining

    async def most_spent_on_a_day(self) -> int:
        spent: defaultdict[str, int] = defaultdict(int)
        for row in await self.record.usage("acme", FIRST_DAY, LAST_DAY):
            spent[row.day] += row.cost
        return max(spent.values(), default=0)

    async def _settle(self, settlement: Settlement) -> None:
        self.spool.append(settlement)
        if not self.is_away:
            await self._apply()
        if self.disk_fault is not None:
            raise self.disk_fault

    async def _apply(self) -> None:
        waiting: Sequence[Settlement] = self.spool[self._num_applied :]
        self._num_applied = len(self.spool)
        await self.record.settle(waiting)

    def _id(self, kind: str) -> str:
        return f"{kind}_{next(self._ids)}"

    def _now_us(self) -> int:
        return to_us(self.clock.now)
