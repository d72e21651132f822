"""The ledger in Redis ≥ 6.2. Every operation on a tenant is one script, which takes the time from Redis.

Layout; all of it has a TTL, which the same script sets. `<who>` is a key's id, or nothing: the tenant.
    headrace:{<tenant>}:account              hash: money:<who> → its day, and spent, reserved, credit and
                                             forgiven of that day and of its month; rates:<who>:<model>
                                             → levels of the three rates; output:<model> → running p90
                                             of output length
    headrace:{<tenant>}:open                 hash: request id → reservation, what it took, how far it is
    headrace:{<tenant>}:leases:<who>         sorted set: request id → when its lease ends, µs
    headrace:{<tenant>}:purses               the same of purses, which are no requests
    headrace:{<tenant>}:settled:<hour>       hash: request id → tombstone, by the hour of `started_at`;
                                             of adjustments too, by that of `at`
    headrace:{<tenant>}:usage:<day>          hash: model and key → sums
    headrace:{ledger}:watched                sorted set: tenant → when it is looked at for orphans, µs
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from tenants.bounded import bounded
from tenants.ledger import redis_messages as messages
from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.decision import after, decide
from tenants.ledger.gauges import standing
from tenants.ledger.grant import Granted, Refused, Standing
from tenants.ledger.ledger import Applied
from tenants.ledger.redis_calls import CALLS_A_PIPELINE, LedgerScripts, json_parsed, parsed, prefix_of
from tenants.ledger.redis_messages import Reserved
from tenants.ledger.redis_reaper import RedisReaper
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress, Settlement
from tenants.ledger.state import Spends, State
from tenants.ledger.usage import Sums, UsageRow, days_asked, row
from tenants.ledger.windows import day_name
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_script import ScriptCall
from tenants.redis_trouble import unavailable
from tenants.store import CorruptRecord
from tenants.terms import Limits

log = logging.getLogger("headrace.record")

_APPLIED: dict[object, Applied] = {1: "applied", 2: "corrected", 3: "duplicate"}


class RedisLedger:
    """A `Ledger` over a client that someone else owns and closes; the record is Redis'.

    A call ends within `timeout_s`, of many settlements within that for each hundred. `clock` tells µs since
    the epoch; without it time is Redis'.
    """

    def __init__(
        self, client: Redis, clock: Callable[[], int] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._scripts = LedgerScripts(client, clock, timeout_s)
        self._reaper = RedisReaper(self._scripts)

    async def load(self) -> None:
        """Tells Redis the scripts, so that the first request need not. Raises `StoreUnavailable`."""
        await self._scripts.load()

    async def reserve(self, ask: Ask) -> Granted | Refused:
        ask.check()
        calls = [self._reserve_call(ask), self._scripts.watch(ask.tenant_id)]
        reply, _ = await self._scripts.run(calls)
        return self.read_reserve(ask, reply)

    def queue_reserve(self, pipeline: Pipeline, ask: Ask) -> None:
        """`reserve` as one command of the caller's pipeline, which is run with `raise_on_error=False`.

        `queue_watch` comes behind it in the same pipeline. Raises ValueError as `reserve` does.
        """
        ask.check()
        _queue(pipeline, self._reserve_call(ask))

    def queue_watch(self, pipeline: Pipeline, tenant_id: str) -> None:
        """One more command, so that the reaper finds what was reserved; its answer says nothing."""
        _queue(pipeline, self._scripts.watch(tenant_id))

    def read_reserve(self, ask: Ask, reply: object) -> Granted | Refused:
        """What `reserve` returns, from the answer to the command of `queue_reserve`.

        Raises `StoreUnavailable`. If Redis forgot the script, it is told again meanwhile.
        """
        place = prefix_of(ask.tenant_id)
        reserved = parsed(self._scripts.checked(reply, place), Reserved, place)
        state, decision = reserved.state, decide(ask, reserved.state)
        if isinstance(decision, Refused) != (reserved.max_tokens == 0):
            raise CorruptRecord(f"the limits under {place} are not what they should be")
        if isinstance(decision, Refused):
            return decision
        return Granted(
            max_tokens=reserved.max_tokens,
            reserved_cost=decision.cost,
            standing=standing(ask.scopes, after(ask, state, decision)),
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[Applied]:
        for settlement in settlements:
            settlement.check()
        replies = await self._scripts.run([self._settle_call(one) for one in settlements])
        places = [prefix_of(one.tenant_id) for one in settlements]
        return [_APPLIED[self._scripts.checked(*answer)] for answer in zip(replies, places, strict=True)]

    async def renew(self, running: Sequence[Progress]) -> None:
        by_tenant: defaultdict[str, list[Progress]] = defaultdict(list)
        for one in running:
            by_tenant[one.tenant_id].append(one)
        calls = [call for tenant_id, its in by_tenant.items() for call in self._renew_calls(tenant_id, its)]
        for reply in await self._scripts.run(calls):
            self._scripts.checked(reply, "headrace:")

    async def reap(self) -> list[Settlement]:
        return await self._reaper.reap()

    async def standing(self, tenant_id: str, model: str, scopes: Sequence[Scope]) -> Standing:
        return standing(scopes, await self._state(tenant_id, model, scopes))

    async def _state(self, tenant_id: str, model: str, scopes: Sequence[Scope]) -> State:
        call = self._scripts.call("standing", tenant_id, messages.standing(model, scopes))
        (reply,) = await self._scripts.run([call])
        place = prefix_of(tenant_id)
        return parsed(self._scripts.checked(reply, place), Reserved, place).state

    async def reopen(self, held: Sequence[Held]) -> None:
        """One tenant whose keys are damaged is told and left out: all others' requests run too.

        A hundred at a time, so that however many there are no call is too long.
        """
        by_tenant = sorted(held, key=_tenant_of)
        for first in range(0, len(held), CALLS_A_PIPELINE):
            for reply in await self._scripts.run(
                self._reopen_calls(by_tenant[first : first + CALLS_A_PIPELINE])
            ):
                try:
                    self._scripts.checked(reply, "headrace:")
                except CorruptRecord as error:
                    log.error("what runs cannot be reserved again: %s", error)

    async def spends(self, tenant_id: str, key_id: str | None) -> Spends:
        state = await self._state(tenant_id, "", [Scope(key_id, Limits())])
        (scope,) = state.scopes
        return Spends(state.now_us, scope.day, scope.month)

    async def adjust(self, adjustments: Sequence[Adjustment]) -> list[Applied]:
        for adjustment in adjustments:
            adjustment.check()
        calls = [self._scripts.call("adjust", one.tenant_id, messages.adjust(one)) for one in adjustments]
        replies = await self._scripts.run(calls)
        places = [prefix_of(one.tenant_id) for one in adjustments]
        return [_APPLIED[self._scripts.checked(*answer)] for answer in zip(replies, places, strict=True)]

    async def usage(self, tenant_id: str, first_day: str, last_day: str) -> list[UsageRow]:
        days = days_asked(first_day, last_day)
        found: list[UsageRow] = []
        for first in range(0, len(days), CALLS_A_PIPELINE):
            found += await self._usage_of(tenant_id, days[first : first + CALLS_A_PIPELINE])
        return found

    def _reserve_call(self, ask: Ask) -> ScriptCall:
        return self._scripts.call("reserve", ask.tenant_id, messages.reserve(ask))

    def _settle_call(self, settlement: Settlement) -> ScriptCall:
        return self._scripts.call(
            "settle", settlement.tenant_id, messages.settle(settlement, by_reaper=False)
        )

    def _reopen_calls(self, held: Sequence[Held]) -> list[ScriptCall]:
        calls: list[ScriptCall] = []
        for tenant_id, its in groupby(held, key=_tenant_of):
            message = messages.reopen(list(its))
            calls += [self._scripts.watch(tenant_id), self._scripts.call("reopen", tenant_id, message)]
        return calls

    def _renew_calls(self, tenant_id: str, running: Sequence[Progress]) -> Iterator[ScriptCall]:
        yield self._scripts.watch(tenant_id)
        for first in range(0, len(running), CALLS_A_PIPELINE):
            message = messages.renew(running[first : first + CALLS_A_PIPELINE])
            yield self._scripts.call("renew", tenant_id, message)

    async def _usage_of(self, tenant_id: str, days: Sequence[int]) -> list[UsageRow]:
        keys = [f"{prefix_of(tenant_id)}usage:{day_name(day)}" for day in days]
        try:
            async with bounded(self._timeout_s), self._client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.hgetall(key)
                replies: list[dict[bytes, bytes]] = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise unavailable(error, prefix_of(tenant_id)) from error
        rows = [
            row(
                tenant_id,
                day,
                *json_parsed(place, tuple[str, str], key),
                Sums(*parsed(sums, tuple[int, int, int, int, int], key)),
            )
            for day, key, found in zip(days, keys, replies, strict=True)
            for place, sums in found.items()
        ]
        return sorted(rows, key=lambda row: (row.day, row.model, row.key_id))


def _tenant_of(held: Held) -> str:
    return held.ask.tenant_id


def _queue(pipeline: Pipeline, call: ScriptCall) -> None:
    call.script.queue(pipeline, call.keys, *call.args)
