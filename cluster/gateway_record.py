"""One gateway's part in the record of tenants: what it asks it, takes from it, books and watches."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from prometheus_client import CollectorRegistry, Gauge
from redis.asyncio import Redis

from cluster.api.waiting import end_all
from cluster.books import Books
from cluster.running import Running
from cluster.settings import SPOOLS, ServeSettings
from cluster.tenant_metrics import TenantMetrics
from tenants.ledger.ledger import RENEW_EVERY_S
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.settlement import Settlement
from tenants.offline.redis_fleet import RedisFleet
from tenants.offline.standby import Means, Standby
from tenants.reseed import Reseeder
from tenants.snapshot_file import FILE_NAME, SnapshotKeeper
from tenants.spool.dead_spools import DeadSpools
from tenants.spool.every import every
from tenants.spool.leases import Leases
from tenants.spool.reaper import Reaper
from tenants.spool.rebuild import rebuild
from tenants.spool.settler import Settler
from tenants.spool.spool import Spool
from tenants.store import StoreUnavailable, Trouble
from tenants.store_redis import RedisTenantStore

WATCH_EVERY_S = 0.5
REAP_EVERY_S = 1.0
LAST_SETTLEMENTS_S = 2.0
"""For what is not applied when the gateway ends; whoever finds its spool does the rest."""

GAUGES = {
    "settlements_pending": "Settlements that Redis does not have yet",
    "settlement_oldest_pending_seconds": "For how long there has been one",
    "settlements_corrupt": "Lines of spools that are damaged",
    "settlements_expired": "Settlements found too late to be applied safely",
    "settlements_refused": "Settlements whose place in Redis holds something else",
    "spool_failed_writes": "Groups of settlements that the disk did not take",
    "spools_replayed": "Spools of dead gateways that were applied",
    "requests_reaped": "Reservations of dead gateways that were settled",
    "snapshot_behind": "1 while the copy of the record cannot be written",
    "gateways_live": "Gateways, as this one knows",
    "prepaid_held": "Micro-units reserved for a time without Redis",
}


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
        dead = DeadSpools(spools, self.ledger, time.time, self._settler.figures, settings.spool_days)
        self._reaper = Reaper(self.ledger, self._settler, dead, time.monotonic)
        self._keeper = SnapshotKeeper(self.store, settings.state_dir, time.time)
        reseeder = Reseeder(
            self.store,
            settings.state_dir / FILE_NAME,
            secret,
            lambda: rebuild(spools, self.ledger, time.time()),
        )
        means = Means(
            gateway_id=gateway_id,
            ledger=self.ledger,
            fleet=RedisFleet(client),
            settle=self._settler.settle,
            reseed=reseeder.reseed,
            clock=time.monotonic,
            wall_clock=time.time,
            new_id=partial(secrets.token_hex, 16),
        )
        self.standby = Standby(means, self._on_trouble)
        self.books = Books(self._leases, self._settler, time.time, self._on_settled)
        self._tasks: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self._settler.start()
        loops = (
            self.standby.run(),
            every(WATCH_EVERY_S, self._end_frozen),
            every(WATCH_EVERY_S, self._keep_copy),
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
        await self.books.close()
        await self.standby.close()
        await self._settler.close(LAST_SETTLEMENTS_S)
        self._keeper.close()

    def register(self, registry: CollectorRegistry) -> None:
        """Its own state, as gauges that are read when they are asked for."""
        settler, figures, reaper = self._settler, self._settler.figures, self._reaper
        values: dict[str, Callable[[], float]] = {
            "settlements_pending": lambda: settler.num_pending,
            "settlement_oldest_pending_seconds": lambda: settler.oldest_pending_s,
            "settlements_corrupt": lambda: figures.num_corrupt,
            "settlements_expired": lambda: figures.num_expired,
            "settlements_refused": lambda: figures.num_refused,
            "spool_failed_writes": lambda: settler.num_failed_writes,
            "spools_replayed": lambda: reaper.num_spools_replayed,
            "requests_reaped": lambda: reaper.num_reaped,
            "snapshot_behind": lambda: self._keeper.is_behind,
            "gateways_live": lambda: self.standby.num_gateways,
            "prepaid_held": lambda: self.standby.amount_held,
        }
        for name, text in GAUGES.items():
            Gauge(f"headrace_{name}", text, registry=registry).set_function(values[name])

    async def _end_frozen(self) -> None:
        await self._if_whole(lambda: self.running.check(self.store))

    async def _keep_copy(self) -> None:
        await self._if_whole(self._keeper.keep_up)

    async def _if_whole(self, look: Callable[[], Awaitable[object]]) -> None:
        """The next one makes up for one that failed."""
        if self.standby.health.trouble is None:
            with suppress(StoreUnavailable):
                await look()

    def _on_settled(self, settlement: Settlement) -> None:
        self._metrics.count_settled(settlement)
        self.standby.ended(settlement)

    def _on_trouble(self, trouble: Trouble | None) -> None:
        self._metrics.tell_up(trouble is None)
        if trouble is None:
            self._settler.repeat_recent()
        else:
            self._settler.note_outage()
