"""The ledger of a gateway that cannot ask the record: its share of each limit, and what its purses hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.settlement import Progress, Settlement
from tenants.offline.local_share import local_share
from tenants.offline.prepaid import Prepaid
from tenants.offline.purse import Purse, given_back, holder_of
from tenants.store import StoreUnavailable
from tenants.terms import Limits, Terms


class _Running(NamedTuple):
    tenant_id: str
    purse: Purse | None
    """What pays for it."""


class OfflineLedger:
    """Owns what was let in while the record was away, in ledgers of this process that end with the outage.

    Rates and concurrency are taken from one that knows this gateway's share. Money is taken from another,
    in which each purse is a tenant with the purse as its budget, and in which no time passes, so that no
    new day ever refills it. `clock` tells µs since the epoch; `num_gateways`, how many share the limits.
    """

    def __init__(self, prepaid: Prepaid, num_gateways: Callable[[], int], clock: Callable[[], int]) -> None:
        self._prepaid = prepaid
        self._num_gateways = num_gateways
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._ended: list[tuple[Settlement, Purse | None]] = []
        """What the two ledgers are to be told next."""
        self._open_ledgers()

    async def reserve(self, ask: Ask, terms: Terms) -> Granted | Refused:
        """Raises `StoreUnavailable` for whoever is not served without the record, whom no purse pays for,
        or who wants more at once than the share, though not more than the limit.
        """
        if terms.offline == "refuse":
            raise StoreUnavailable("not served while the record is away")
        await self._settle_ended()
        answer = await self._shares.reserve(_of_share(ask, self._num_gateways()))
        if isinstance(answer, Granted):
            return await self._pay(ask, answer)
        if answer.is_never and not await _is_never(ask):
            raise StoreUnavailable("more than a share of the limit while the record is away")
        return answer

    def ended(self, settlement: Settlement) -> None:
        """A request of this gateway, let in by whom ever, was settled."""
        self._prepaid.ended(settlement.request_id)
        running = self._running.pop(settlement.request_id, None)
        if running is not None:
            self._ended.append((settlement, running.purse))

    async def tick(self) -> None:
        """To be called every `RENEW_EVERY_S` while the record is away: what runs keeps what it took."""
        await self._settle_ended()
        alive = [Progress(running.tenant_id, name, 0, 0) for name, running in self._running.items()]
        await self._shares.renew(alive)

    def record_is_back(self) -> None:
        """What still runs is settled with the record; the shares are forgotten and the purses closed."""
        self._running.clear()
        self._ended.clear()
        self._open_ledgers()
        self._prepaid.close_all()

    def _open_ledgers(self) -> None:
        self._shares = MemoryLedger(self._clock)
        self._money = MemoryLedger(lambda: 0)

    async def _pay(self, ask: Ask, granted: Granted) -> Granted:
        purse = None
        if granted.reserved_cost and holder_of(ask) is not None:
            purse = self._prepaid.purse_for(ask)
            paid = None if purse is None else await self._money.reserve(_of_purse(ask, purse))
            if purse is None or not isinstance(paid, Granted):
                await self._shares.settle([given_back(ask, ask.started_at)])
                raise StoreUnavailable("no money is held for it while the record is away")
            self._prepaid.spends(purse, ask.request_id)
            granted = msgspec.structs.replace(paid, standing=granted.standing)
        self._running[ask.request_id] = _Running(ask.tenant_id, purse)
        return granted

    async def _settle_ended(self) -> None:
        ended, self._ended = self._ended, []
        await self._shares.settle([settlement for settlement, _ in ended])
        await self._money.settle(
            [
                msgspec.structs.replace(settlement, tenant_id=purse.purse_id)
                for settlement, purse in ended
                if purse is not None
            ]
        )


def _of_share(ask: Ask, num_gateways: int) -> Ask:
    shares = (Scope(scope.key_id, local_share(scope.limits, num_gateways)) for scope in ask.scopes)
    return msgspec.structs.replace(ask, scopes=tuple(shares))


def _of_purse(ask: Ask, purse: Purse) -> Ask:
    budget = Scope(None, Limits(budget_day=purse.amount))
    return msgspec.structs.replace(ask, tenant_id=purse.purse_id, scopes=(budget,))


async def _is_never(ask: Ask) -> bool:
    """Whether all of the limit, unused, would not hold it either."""
    answer = await MemoryLedger(lambda: 0).reserve(_of_share(ask, num_gateways=1))
    return isinstance(answer, Refused) and answer.is_never
