"""What dead gateways left behind: reservations without a lease, and spools without an owner."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tenants.ledger.ledger import LEASE_S, RENEW_EVERY_S, Ledger
from tenants.spool.dead_spools import DeadSpools
from tenants.spool.settler import Settler
from tenants.store import StoreUnavailable

PATIENCE_S = LEASE_S + RENEW_EVERY_S
"""After an outage of the ledger: those who live renew their leases first."""


class Reaper:
    """To be called every second; one is enough, several are harmless. `clock` tells seconds; `is_away`,
    whether the ledger is known to be: then it is not asked.
    """

    def __init__(
        self,
        ledger: Ledger,
        settler: Settler,
        dead_spools: DeadSpools,
        clock: Callable[[], float],
        is_away: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._settler = settler
        self._dead_spools = dead_spools
        self._clock = clock
        self._is_away = is_away
        self._not_before = 0.0
        self.num_reaped = 0
        self.num_spools_replayed = 0

    async def tick(self) -> None:
        """Never raises for a ledger or a disk that is away: the next tick tries again.

        What a dead gateway settled itself comes before what is guessed of it.
        """
        if self._is_away():
            self._not_before = self._clock() + PATIENCE_S
            return
        with suppress(StoreUnavailable, OSError):  # not even the folder of all spools can be read
            self.num_spools_replayed += await self._dead_spools.replay()
        with suppress(StoreUnavailable):
            await self._reap()
        await self._settler.save_checkpoint()
        with suppress(OSError):
            await self._dead_spools.sweep()

    async def _reap(self) -> None:
        reaped = await self._ledger.reap() if self._clock() >= self._not_before else []
        self.num_reaped += len(reaped)
        for settlement in reaped:
            with suppress(OSError):  # the settler tells, and writes it later
                await self._settler.settle(settlement)
