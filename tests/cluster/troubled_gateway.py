"""All of a gateway that asks Redis, in one process: admission, books, spool, standby; the server is real.

Only the clock is not real: leases, windows and probes go by it, so a test says how much time passes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from cluster.admission import Admission, Who
from cluster.api.errors import ApiError
from cluster.books import Books
from cluster.generation import GenerationRequest, Usage
from cluster.index.redis_index import RedisPrefixIndex
from cluster.reservation import Reservation
from engine.request import SamplingParams
from tenants.breaker import PROBE_EVERY_S
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.ledger import LEASE_S
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.windows import to_us
from tenants.offline.redis_membership import RedisMembership
from tenants.offline.reopening import all_reopened
from tenants.offline.standby import Means, Standby
from tenants.redis_client import connect
from tenants.reseed import EPOCH_KEY
from tenants.spool.leases import Leases
from tenants.spool.rebuild import rebuild
from tenants.spool.settler import Settler
from tenants.spool.spool import Spool
from tenants.store import Account, Trouble
from tenants.terms import Terms
from tests.builders_tenants import FakeClock, a_key, a_tenant
from tests.tenants.offline_rig import NOON

HANGS_AFTER_S = 10.0
PROMPT_TOKENS, MAX_TOKENS = 10, 20
BUDGET = 100_000
PURSE = BUDGET // 100
COST = PROMPT_TOKENS + MAX_TOKENS
"""Of a request that is answered to its end; a token is one micro-unit."""
A_TOKEN = 10**6

FREE = Account(a_key(1, tenant_id="free"), a_tenant("free", tier="free"), Terms(offline="refuse"))
OPEN = Account(a_key(2, tenant_id="open"), a_tenant("open"), Terms(offline="serve"))
PAID = Account(
    a_key(3, tenant_id="paid"),
    a_tenant("paid"),
    Terms(offline="serve", budget_day=BUDGET, input_price=A_TOKEN, output_price=A_TOKEN),
)


class TroubledGateway:
    """Admits and settles as the real one does, against the Redis at `url`."""

    def __init__(
        self, url: str, state_dir: Path, gateway_id: str = "g1", clock: FakeClock | None = None
    ) -> None:
        self.clock = clock or FakeClock(NOON)
        self.told: list[Trouble | None] = []
        self.num_offline: Counter[Trouble] = Counter()
        self.num_round_trips = 0
        self.served: Counter[str] = Counter()
        """By tenant: requests that were answered to their end."""
        self._spools = state_dir / "spool"
        self._asking, self._client = connect(url), connect(url)
        self.ledger = RedisLedger(self._client, self._now_us)
        self.settler = Settler(
            Spool.open(self._spools, gateway_id, self.clock), self.ledger, self.clock, sleep=self._nap
        )
        ids = count(1)
        self._membership = RedisMembership(self._client, self.clock)
        self._leases = Leases(self.ledger)
        self.standby = Standby(
            Means(
                gateway_id=gateway_id,
                ledger=self.ledger,
                membership=self._membership,
                settle=self.settler.settle,
                reopen=lambda: self._books.reopen(),
                reseed=self._reseed,
                clock=self.clock,
                wall_clock=self.clock,
                new_id=lambda: f"{gateway_id}_purse_{next(ids)}",
            ),
            self._changed,
        )
        self._books = Books(self._leases, self.settler, self.clock, self.standby.ended)
        self._admission = Admission(
            self._counted(self._asking),
            self.ledger,
            RedisPrefixIndex(self._client),
            self.standby.health,
            self.standby,
            self._books,
            Who(gateway_id, "tiny", self.clock),
            self,
        )
        self._request_ids = (f"{gateway_id}_r{number}" for number in count(1))

    async def open(self) -> TroubledGateway:
        await self._client.set(EPOCH_KEY, "1")
        self.settler.start()
        return self

    async def close(self) -> None:
        await self.standby.close()
        await self._books.close()
        await self.settler.close(0)
        await self._asking.aclose()
        await self._client.aclose()

    async def serve(self, account: Account) -> str:
        """One request to its end: "served", or the code of its refusal."""
        try:
            reservation = await self.admit(account)
        except ApiError as error:
            return error.code
        self.answer(account, reservation)
        return "served"

    async def admit(self, account: Account) -> Reservation:
        async with asyncio.timeout(HANGS_AFTER_S):
            request = GenerationRequest(
                request_id=next(self._request_ids),
                account=account,
                prompt_token_ids=tuple(range(PROMPT_TOKENS)),
                sampling=SamplingParams(max_tokens=MAX_TOKENS),
                deadline=0.0,
            )
            return (await self._admission.admit(request)).reservation

    def let_in(self, account: Account) -> Reservation:
        """By an answer of the record that is heard now, whatever has become of the record."""
        ask = Ask(
            request_id=next(self._request_ids),
            tenant_id=account.tenant.tenant_id,
            key_id=account.key.key_id,
            model="tiny",
            gateway_id="g",
            started_at=self.clock(),
            scopes=(Scope(None, account.terms),),
            prices=account.terms.prices,
            prompt_tokens=PROMPT_TOKENS,
            n=1,
            max_tokens=MAX_TOKENS,
        )
        return self._books.open(ask, Granted(max_tokens=MAX_TOKENS, reserved_cost=COST))

    def answer(self, account: Account, reservation: Reservation) -> None:
        reservation.settle("finished", Usage(PROMPT_TOKENS, reservation.max_tokens, 0))
        assert reservation.max_tokens == MAX_TOKENS
        self.served[account.tenant.tenant_id] += 1

    async def serve_many(self, number: int) -> Counter[tuple[str, str]]:
        """So many requests of each tenant at once: how many of each met which end."""
        accounts = [account for account in (FREE, OPEN, PAID) for _ in range(number)]
        ends = await asyncio.gather(*map(self.serve, accounts))
        return Counter((account.tenant.tenant_id, end) for account, end in zip(accounts, ends, strict=True))

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / PROBE_EVERY_S)):
            self.clock.advance(PROBE_EVERY_S)
            await self.tick()

    async def tick(self) -> None:
        """What a gateway does at every probe, and more often than it must."""
        await self.standby.tick()
        await self._leases.renew()

    async def earn_a_purse(self) -> None:
        for _ in range(3):
            await self.serve(PAID)
            await self.pass_s(2.0)
        assert self.standby.amount_held == PURSE

    async def until(self, trouble: Trouble, within_s: float = 5.0) -> None:
        """Fails unless that is the record's trouble within the time, by the clock."""
        await self._until(lambda: self._is(trouble), within_s)

    async def until_well(self, within_s: float = 5.0) -> None:
        """Fails unless the record decides again within the time, which the free tenant tells: nothing else
        lets it in.
        """
        await self._until(lambda: self._is_served(FREE), within_s)

    async def drained(self) -> None:
        """Everything that was settled is on the disk and applied."""
        async with asyncio.timeout(HANGS_AFTER_S):
            await self._books.close()
            await self.settler.drained()

    async def settle_all(self) -> None:
        """And purses are given back, and orphans reaped."""
        await self.drained()
        async with asyncio.timeout(HANGS_AFTER_S):
            await self.pass_s(2 * LEASE_S)
            await self.standby.close()
            await self.settler.drained()
            await self.ledger.reap()

    async def available(self) -> int:
        """Micro-units of the day that the paying tenant may still spend."""
        standing = await self.ledger.standing("paid", "tiny", [Scope(None, PAID.terms)])
        gauge = standing.tightest("budget_day")
        assert gauge is not None
        return gauge.remaining

    async def charged(self) -> int:
        """Requests that the paying tenant's usage counts."""
        rows = await self.ledger.usage("paid", "2023-11-15", "2023-11-15")
        assert all(row.cost == row.requests * COST for row in rows)
        return sum(row.requests for row in rows)

    def count_granted(self, tenant_id: str, granted: Granted) -> None: ...

    def count_refused(self, tenant_id: str, refused: Refused) -> None: ...

    def count_offline(self, trouble: Trouble) -> None:
        self.num_offline[trouble] += 1

    async def _until(self, condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
        for _ in range(round(within_s / PROBE_EVERY_S)):
            await self.pass_s(PROBE_EVERY_S)
            if await condition():
                return
            await asyncio.sleep(0.01)  # what writes an empty record anew needs real time
        raise AssertionError(f"still {self.standby.health.trouble} after {within_s} s")

    async def _is(self, trouble: Trouble) -> bool:
        return self.standby.health.trouble == trouble

    async def _is_served(self, account: Account) -> bool:
        return await self.serve(account) == "served"

    def _counted(self, client: Redis) -> Redis:
        pipeline = client.pipeline

        def counted(*args: Any, **named: Any) -> Any:
            self.num_round_trips += 1
            return pipeline(*args, **named)

        client.pipeline = counted  # type: ignore[method-assign]
        return client

    def _changed(self, trouble: Trouble | None) -> None:
        self.told.append(trouble)
        if trouble is None:
            self.settler.repeat_recent()
        else:
            self.settler.note_outage()

    async def _reseed(self) -> None:
        await all_reopened(self._membership, self.standby.num_gateways, self._nap)
        await rebuild(self._spools, self.ledger, self.clock())
        await self._client.set(EPOCH_KEY, "2")

    async def _nap(self, seconds: float) -> None:
        await asyncio.sleep(0.01)

    def _now_us(self) -> int:
        return to_us(self.clock())
