"""Settlements, spools that a test can break, and a ledger that is away when a test says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tenants.audit import Actor
from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ledger import Applied
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.settlement import Settlement
from tenants.ledger.usage import Sums
from tenants.spool.folder import make
from tenants.spool.line import Entry
from tenants.spool.settler import Settler
from tenants.spool.spool import Spool
from tenants.store import StoreUnavailable
from tests.builders_tenants import FakeClock

NOON = 1_796_040_000.0
"""2026-11-30 12:00 UTC."""
DAY_S = 86400.0
HANG_S = 60.0
"""What takes longer will never come."""


def a_settlement(number: int = 1, **fields: Any) -> Settlement:
    """Request `r<number>`, which costs `number` and made 7 tokens."""
    plain: dict[str, Any] = {
        "request_id": f"r{number}",
        "tenant_id": "acme",
        "key_id": "key_1",
        "model": "tiny",
        "gateway_id": "g1",
        "started_at": NOON - 1,
        "ended_at": NOON,
        "outcome": "finished",
        "n": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 7,
        "cost": number,
    }
    return Settlement(**plain | fields)


def an_adjustment(number: int = 1, **fields: Any) -> Adjustment:
    """Adjustment `a<number>`: a top-up of the day's budget by `number`."""
    plain: dict[str, Any] = {
        "adjustment_id": f"a{number}",
        "tenant_id": "acme",
        "key_id": None,
        "window": "day",
        "action": "top_up",
        "amount": number,
        "at": NOON,
        "by": Actor("admin", "key_9"),
    }
    return Adjustment(**plain | fields)


class Disk:
    """Stands for `os.fsync`: remembers how much of each file is safe, and fails when told to."""

    def __init__(self) -> None:
        self.synced: list[bytes | None] = []
        """Content of what was synced, in order; None: a folder."""
        self.fault: OSError | None = None

    def __call__(self, file: int) -> None:
        if self.fault is not None:
            raise self.fault
        is_folder = os.path.isdir(f"/proc/self/fd/{file}")
        self.synced.append(None if is_folder else os.pread(file, 1 << 20, 0))


def a_spool(
    base: Path, gateway_id: str = "g1", clock: Callable[[], float] = lambda: NOON, disk: Disk | None = None
) -> Spool:
    """One whose groups wait for nobody, not for the disk either unless the test brings its own."""
    folder, lock = make(base, gateway_id)
    return Spool(folder, lock, clock, disk or (lambda file: None), collect=lambda: None)


async def spooled(base: Path, gateway_id: str, *entries: Entry, at: float = NOON) -> Path:
    """The spool of a gateway that wrote these, in order, and died. Its folder."""
    spool = a_spool(base, gateway_id, lambda: at)
    for entry in entries:
        await spool.append(entry)
    await spool.close()
    return spool.folder


class TroubledLedger(MemoryLedger):
    """Remembers what it was told to settle, and what it answered."""

    def __init__(self, clock: Callable[[], float] = lambda: NOON) -> None:
        super().__init__(lambda: round(clock() * 10**6))
        self.is_away = False
        self.told: list[str] = []
        self.answers: list[Applied] = []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Applied]:
        if self.is_away:
            raise StoreUnavailable
        self.told += [one.request_id for one in settlements]
        answers = await super().settle(settlements)
        self.answers += answers
        return answers

    async def adjust(self, adjustments: Sequence[Adjustment]) -> list[Applied]:
        if self.is_away:
            raise StoreUnavailable
        return await super().adjust(adjustments)

    async def renew(self, running: Sequence[Any]) -> None:
        if self.is_away:
            raise StoreUnavailable
        await super().renew(running)

    async def reap(self) -> list[Settlement]:
        if self.is_away:
            raise StoreUnavailable
        return await super().reap()


async def sums(ledger: Any, tenant_id: str = "acme", day: str = "2026-11-30") -> Sums:
    total = Sums()
    for row in await ledger.usage(tenant_id, day, day):
        total = total.plus(Sums(*(getattr(row, figure) for figure in Sums._fields)))
    return total


class Pauses:
    """Stands for `asyncio.sleep`: remembers how long, and does what the test wants at each."""

    def __init__(self, then: Callable[[int], None] = lambda count: None) -> None:
        self.seconds: list[float] = []
        self._then = then

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._then(len(self.seconds))
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Lets the other tasks run until `holds()`; that it comes true is the test."""
    async with asyncio.timeout(HANG_S):
        while not holds():  # noqa: ASYNC110  nobody tells when it does
            await asyncio.sleep(0)


async def at_once() -> None:
    """Stands for the moment in which more settlements may come."""


class SettlerRig:
    """A settler over a spool, a disk, a ledger and a clock of the test's."""

    def __init__(self, base: Path, then: Callable[[int], None] = lambda count: None) -> None:
        self.clock = FakeClock(NOON)
        self.disk = Disk()
        self.ledger = TroubledLedger(self.clock)
        self.spool = a_spool(base, "g1", self.clock, self.disk)
        self.pauses = Pauses(then)
        self.settler = Settler(self.spool, self.ledger, self.clock, self.pauses, at_once)
        self.settler.start()

    async def paused(self, count: int) -> None:
        """Returns once the settler has waited so often."""
        await until(lambda: len(self.pauses.seconds) >= count)

    async def settle(self, *numbers: int, **fields: Any) -> None:
        for number in numbers:
            await self.settler.settle(a_settlement(number, **{"started_at": self.clock.now - 1} | fields))
        await self.drained()

    async def drained(self) -> None:
        async with asyncio.timeout(HANG_S):
            await self.settler.drained()
