"""Who has requests running in this gateway, so that a frozen tenant's end at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tenants.store import CorruptRecord
from tenants.tenant import Tenant

NUM_LOOKS = 4
"""After a change."""


class TenantRecord(Protocol):
    """The part of the tenants' record that is asked. One that came back empty raises `StoreUnavailable`."""

    async def get_tenant(self, tenant_id: str) -> Tenant | None: ...

    async def change_count(self) -> int: ...


class RunningRequest:
    """One running request, from `entered` to `leave`."""

    def __init__(self, owner: Running, tenant: Tenant) -> None:
        self._owner = owner
        self.is_ended = False
        """Its tenant was frozen or deleted."""
        self.on_ended: Callable[[], None] = lambda: None
        """Called once, when that happens."""
        self.tenant = tenant
        """As its key was resolved."""

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.on_ended()

    def leave(self) -> None:
        """It has ended by itself. Safe any number of times."""
        self._owner.left(self)


class Running:
    """Owns which requests run here, by tenant.

    Tenants are read again, one after the other, only when the record has changed, at that check and the
    `NUM_LOOKS` − 1 that follow: requests enter meanwhile with what was known before the change. At two checks
    a second that finds all whose key was resolved, in the record or a cache, up to 1.5 s before they entered.
    """

    def __init__(self) -> None:
        self._runs: dict[str, set[RunningRequest]] = {}
        self._change_count: int | None = None
        """Of the record as it was read last."""
        self._looks_left = 0

    @property
    def num_requests(self) -> int:
        return sum(map(len, self._runs.values()))

    def entered(self, tenant: Tenant) -> RunningRequest:
        """A request of the tenant, as its key was resolved, begins."""
        run = RunningRequest(self, tenant)
        self._runs.setdefault(tenant.tenant_id, set()).add(run)
        return run

    def left(self, run: RunningRequest) -> None:
        """It has ended. Safe any number of times."""
        runs = self._runs.get(run.tenant.tenant_id, set())
        runs.discard(run)
        if not runs:
            self._runs.pop(run.tenant.tenant_id, None)

    async def check(self, record: TenantRecord) -> int:
        """Ends the requests of tenants that are frozen or gone. Returns how many it ended.

        Raises `StoreUnavailable`: nobody was ended then, and the next check does it. A tenant whose entry
        cannot be read keeps its requests.
        """
        count = await record.change_count()
        looks_left = NUM_LOOKS if count != self._change_count else self._looks_left
        if not looks_left:
            return 0
        outdated = [run for tenant_id in tuple(self._runs) for run in await self._outdated(record, tenant_id)]
        for run in outdated:
            run.end()
        self._change_count, self._looks_left = count, looks_left - 1
        return len(outdated)

    async def _outdated(self, record: TenantRecord, tenant_id: str) -> list[RunningRequest]:
        """A tenant that was made anew under its id is another one, and so is one that was frozen since."""
        try:
            now = await record.get_tenant(tenant_id)
        except CorruptRecord:
            return []
        return [
            run
            for run in self._runs.get(tenant_id, ())
            if not run.is_ended and (now is None or now.disabled or _life_of(now) != _life_of(run.tenant))
        ]


def _life_of(tenant: Tenant) -> tuple[float, int]:
    return tenant.created_at, tenant.num_freezes
