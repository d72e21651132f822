"""The ledger in plain Python, for one process: tests, the simulator, a gateway without Redis.

Nothing awaits inside, so each call is atomic among the tasks of a loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import TENANT, Ask, Scope
from tenants.ledger.decision import after, decide
from tenants.ledger.gauges import standing
from tenants.ledger.grant import Granted, Refused, Standing
from tenants.ledger.ledger import Applied
from tenants.ledger.memory_tenant import MemoryTenant
from tenants.ledger.reservation import Held, Told, reaped
from tenants.ledger.settlement import Progress, Settlement
from tenants.ledger.state import Spends
from tenants.ledger.usage import UsageRow, days_asked, row


class MemoryLedger:
    """Owns what its tenants took. `clock` tells µs since the epoch."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._tenants: defaultdict[str, MemoryTenant] = defaultdict(MemoryTenant)

    async def reserve(self, ask: Ask) -> Granted | Refused:
        ask.check()
        tenant, now_us = self._tenants[ask.tenant_id], self._clock()
        state = tenant.state(ask.model, ask.scopes, now_us)
        decision = decide(ask, state)
        if isinstance(decision, Refused):
            return decision
        tenant.take(ask, decision, now_us)
        return Granted(
            max_tokens=decision.max_tokens,
            reserved_cost=decision.cost,
            standing=standing(ask.scopes, after(ask, state, decision)),
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[Applied]:
        for settlement in settlements:
            settlement.check()
        now_us = self._clock()
        return [self._tenants[one.tenant_id].settle(one, now_us) for one in settlements]

    async def renew(self, running: Sequence[Progress]) -> None:
        now_us = self._clock()
        for one in running:
            told = Told(one.cached_tokens, one.completion_tokens)
            self._tenants[one.tenant_id].renew(one.request_id, told, now_us)

    async def reap(self) -> list[Settlement]:
        now_us = self._clock()
        found: list[Settlement] = []
        for tenant in self._tenants.values():
            for opened in tenant.ended(now_us):
                settlement = reaped(opened.reservation, opened.told, now_us)
                if tenant.settle(settlement, now_us) == "applied":
                    found.append(settlement)
        return found

    async def standing(self, tenant_id: str, model: str, scopes: Sequence[Scope]) -> Standing:
        return standing(scopes, self._tenants[tenant_id].state(model, scopes, self._clock()))

    async def reopen(self, held: Sequence[Held]) -> None:
        now_us = self._clock()
        for one in held:
            self._tenants[one.ask.tenant_id].reopen(one, now_us)

    async def spends(self, tenant_id: str, key_id: str | None) -> Spends:
        return self._tenants[tenant_id].spends(key_id or TENANT, self._clock())

    async def adjust(self, adjustments: Sequence[Adjustment]) -> list[Applied]:
        for adjustment in adjustments:
            adjustment.check()
        now_us = self._clock()
        return [self._tenants[one.tenant_id].adjust(one, now_us) for one in adjustments]

    async def usage(self, tenant_id: str, first_day: str, last_day: str) -> list[UsageRow]:
        days, usage = days_asked(first_day, last_day), self._tenants[tenant_id].usage
        found = [
            (day, place, usage[day][place]) for day in days if day in usage for place in sorted(usage[day])
        ]
        return [row(tenant_id, day, *place, sums) for day, place, sums in found]
