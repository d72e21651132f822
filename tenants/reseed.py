"""After Redis came back empty: who writes the record anew, and how the others know when it is whole.

The epoch is there while the record is whole. A record without one answers nothing, so that no key is called
unknown that was only lost. Whoever finds it missing and gets the lock waits until what runs is reserved in it
again, rebuilds what was spent and topped up, then writes tiers, tenants and keys and the epoch in one step. A
crash at any point leaves either a whole record or none, and the next one begins anew.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tenants.snapshot import Snapshot
from tenants.snapshot_file import SnapshotError, read_snapshot
from tenants.store import StoreUnavailable

log = logging.getLogger("headrace.record")

EPOCH_KEY = "headrace:{directory}:epoch"
LOCK_S = 5.0
"""So long after a re-seeder's death another one begins."""
RENEW_EVERY_S = 1.0
LOOK_EVERY_S = 0.2

Sleep = Callable[[float], Awaitable[None]]
Rebuild = Callable[[], Awaitable[object]]
"""Applies to the empty ledger all that it must know. What a crashed one left of it, or another does at the
same time, is to be no matter. May raise `StoreUnavailable`."""


class LosableRecord(Protocol):
    """Every method may raise `StoreUnavailable`."""

    async def epoch(self) -> str | None:
        """Names this life of the record; None: it is lost."""

    async def mark(self) -> str | None:
        """Who seeded it; also of a record whose epoch is missing."""

    async def lock(self, owner: str) -> bool:
        """Takes the right to re-seed for `LOCK_S`, if nobody has it and the record is not whole."""

    async def renew(self, owner: str) -> bool:
        """For another `LOCK_S`; whether it was still the owner's."""

    async def restore(self, snapshot: Snapshot, owner: str) -> bool:
        """Writes the contents and an epoch and gives back the lock, all or nothing.

        Writes nothing and returns False without the lock. Contents that are there already stay.
        """


def mark_of(secret: bytes) -> str:
    """Under another secret every key that was ever given out would be unknown, silently."""
    return hmac.digest(secret, b"headrace record\0", "sha256").hex()


async def make_whole(
    record: LosableRecord, contents: Snapshot, rebuild: Rebuild, sleep: Sleep = asyncio.sleep
) -> Snapshot | None:
    """Returns once the record is whole: `contents` if they were written into it, else None.

    Raises what `rebuild` does.
    """
    while await record.epoch() is None:
        owner = secrets.token_hex(8)
        if not await record.lock(owner):
            await sleep(LOOK_EVERY_S)
        elif await _while_locked(record, owner, rebuild, sleep) and await record.restore(contents, owner):
            return contents
    return None


async def _while_locked(record: LosableRecord, owner: str, work: Rebuild, sleep: Sleep) -> bool:
    """Does `work`, whether to its end: it is stopped if the lock is lost meanwhile."""
    working = asyncio.ensure_future(work())
    try:
        while True:
            pause = asyncio.ensure_future(sleep(RENEW_EVERY_S))
            try:
                await asyncio.wait({working, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if working.done():
                working.result()
                return True
            with suppress(StoreUnavailable):  # the next renewal, or the restoring, will tell
                if not await record.renew(owner):
                    return False
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


class Reseeder:
    """A gateway's part: writes a lost record back from its copy at `path`."""

    def __init__(
        self, record: LosableRecord, path: Path, secret: bytes, rebuild: Rebuild, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._record = record
        self._path = path
        self._mark = mark_of(secret)
        self._rebuild = rebuild
        self._sleep = sleep
        self._told: str | None = None

    async def reseed(self) -> None:
        """Returns once the record is whole. Raises `StoreUnavailable`; to be called again then."""
        if await self._record.epoch() is not None:
            return
        contents = await self._copy()
        restored = await make_whole(self._record, contents, self._rebuild, self._sleep)
        if restored is not None:
            log.warning(
                "the record was lost; it is back as it was at %.0f, with %d tenants and %d keys",
                restored.taken_at,
                len(restored.tenants),
                len(restored.keys),
            )

    async def _copy(self) -> Snapshot:
        try:
            copy = await asyncio.to_thread(read_snapshot, self._path, self._mark)
            if copy is None:
                raise SnapshotError(f"there is no {self._path}")
        except SnapshotError as error:
            if str(error) != self._told:
                log.error("the record is lost and cannot be written back: %s", error)
                self._told = str(error)
            raise
        self._told = None
        return copy
