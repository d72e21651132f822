"""One gateway's part in the record of tenants: what it asks it, takes from it, books and watches."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from cluster.api.waiting import end_all
from cluster.books import Books
from cluster.record_looks import RecordLooks
from cluster.record_metrics import RecordMetrics
from cluster.running import Running
from cluster.settings import SPOOLS, ServeSettings
from cluster.tenant_metrics import TenantMetrics
from tenants.breaker import PROBE_EVERY_S
from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ledger import RENEW_EVERY_S
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.settlement import Settlement
from tenants.offline.redis_membership import RedisMembership
from tenants.offline.reopening import all_reopened
from tenants.offline.standby import Means, Standby
from tenants.reseed import Reseeder
from tenants.snapshot_file import FILE_NAME, SnapshotKeeper
from tenants.spool.dead_spools import DeadSpools
from tenants.spool.every import every
from tenants.spool.leases import Leases
from tenants.spool.reaper import Reaper
from tenants.spool.rebuild import rebuild
from tenants.spool.settler import Settler
from tenants.spool.spend_keeper import SpendKeeper
from tenants.spool.spool import Spool
from tenants.store import Trouble
from tenants.store_redis import RedisTenantStore

WATCH_EVERY_S = 0.5
REAP_EVERY_S = 1.0
TELL_EVERY_S = 5.0
LAST_SETTLEMENTS_S = 2.0
"""For what is not applied when the gateway ends; whoever finds its spool does the rest."""


class GatewayRecord:
    """Owns the spool of this gateway and the tasks that keep it and the record in step.

    `client` is someone else's. `start` once, `close` at the end. Raises `OSError` if there is no spool to
    be had.
    """

    def __init__(
        self, client: Redis, settings: ServeSettings, gateway_id: str, secret: bytes, metrics: TenantMetrics
    ) -> None:
        spools = settings.state_dir / SPOOLS
        self.store = RedisTenantStore(client)
        self.ledger = RedisLedger(client)
        self.running = Running()
        self._metrics = metrics
        self._settler = Settler(Spool.open(spools, gateway_id, time.time), self.ledger, time.time)
        self._leases = Leases(self.ledger)
        self._dead_spools = DeadSpools(
            spools, self.ledger, time.time, self._settler.figures, settings.spool_days
        )
        self._keeper = SnapshotKeeper(self.store, settings.state_dir, time.time)
        self._spools = spools
        self._spend = SpendKeeper(self.store, settings.state_dir, self._rebuild)
        reseeder = Reseeder(self.store, settings.state_dir / FILE_NAME, secret, self._refill)
        self._membership = RedisMembership(client)
        means = Means(
            gateway_id=gateway_id,
            ledger=self.ledger,
            membership=self._membership,
            settle=self._settler.settle,
            reopen=self._reopen,
            reseed=reseeder.reseed,
            clock=time.monotonic,
            wall_clock=time.time,
            new_id=partial(secrets.token_hex, 16),
        )
        self.standby = Standby(means, self._on_trouble)
        self._looks = RecordLooks(self.standby.health)
        self._reaper = Reaper(
            self.ledger, self._settler, self._dead_spools, time.monotonic, lambda: self._is_away
        )
        self.books = Books(self._leases, self._settler, time.time, self._on_settled)
        self._tasks: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self._settler.start()
        loops = (
            every(PROBE_EVERY_S, self.standby.tick),
            every(WATCH_EVERY_S, self._end_frozen),
            every(WATCH_EVERY_S, self._keep_copy),
            every(TELL_EVERY_S, self._keep_spend),
            every(RENEW_EVERY_S, self._leases.renew),
            every(REAP_EVERY_S, self._reaper.tick),
        )
        self._tasks = [asyncio.ensure_future(loop) for loop in loops]

    async def close(self) -> None:
        """Once no request runs here any more. What is settled is on disk then, and applied if there is time.

        Safe to call again.
        """
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        await end_all(*tasks)
        try:
            await self.books.close()
            await self.standby.close()
        finally:
            await self._settler.close(LAST_SETTLEMENTS_S)
            self._keeper.close()

    async def adjust(self, adjustment: Adjustment) -> None:
        """As `Settler.adjust`."""
        await self._settler.adjust(adjustment)

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(RecordMetrics(self._numbers))

    def _numbers(self) -> Mapping[str, float]:
        settler, figures, reaper = self._settler, self._settler.figures, self._reaper
        return {
            "settlements_pending": settler.num_pending,
            "settlement_oldest_pending_seconds": settler.oldest_pending_s,
            "settlements_corrupt": figures.num_corrupt,
            "settlements_expired": figures.num_expired,
            "settlements_refused": figures.num_refused,
            "settlements_dropped": settler.num_dropped,
            "spool_failed_writes": settler.num_failed_writes,
            "spools_replayed": reaper.num_spools_replayed,
            "spools_unreadable": self._dead_spools.num_unreadable,
            "requests_reaped": reaper.num_reaped,
            "failed_lease_renewals": self._leases.num_failed_renewals,
            "failed_record_looks": self._looks.num_failed,
            "snapshot_behind": self._keeper.is_behind,
            "gateways_live": self.standby.num_gateways,
            "prepaid_held_micro_units": self.standby.amount_held,
        }

    @property
    def _is_away(self) -> bool:
        return self.standby.health.trouble is not None

    async def _end_frozen(self) -> None:
        await self._looks.look(lambda: self.running.check(self.store))

    async def _keep_copy(self) -> None:
        await self._looks.look(self._keeper.keep_up)

    async def _keep_spend(self) -> None:
        await self._looks.look(self._spend.keep_up)

    async def _reopen(self) -> None:
        await self.books.reopen()

    async def _refill(self) -> None:
        """What ended before its gateway told what runs is in a spool: so these are read last."""
        await all_reopened(self._membership, self.standby.num_gateways)
        await self._rebuild()

    async def _rebuild(self) -> int:
        return await rebuild(self._spools, self.ledger, time.time())

    def _on_settled(self, settlement: Settlement) -> None:
        self._metrics.count_settled(settlement)
        self.standby.ended(settlement)

    def _on_trouble(self, trouble: Trouble | None) -> None:
        self._metrics.tell_up(trouble is None)
        if trouble is None:
            self._settler.repeat_recent()
        else:
            self._settler.note_outage()
