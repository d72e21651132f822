"""Spools whose gateway is dead: applied to their end by whoever takes their lock, and kept for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from tenants.ledger.ledger import Ledger
from tenants.spool.applier import Applier, Figures
from tenants.spool.folder import claim, is_done, mark_done, remove, spools
from tenants.spool.reading import SUFFIX, days_of, utc_day

log = logging.getLogger("headrace.spool")

KEEP_DAYS = 90
_DAY_S = 86400
_SWEEP_EVERY_S = 3600.0


class DeadSpools:
    """Owns nothing but the locks that it holds for a moment: any number of processes may do this at once.

    `clock` tells Unix time.
    """

    def __init__(
        self,
        base: Path,
        ledger: Ledger,
        clock: Callable[[], float],
        figures: Figures,
        keep_days: int = KEEP_DAYS,
    ) -> None:
        self._base = base
        self._ledger = ledger
        self._clock = clock
        self._figures = figures
        self._keep_days = keep_days
        self._swept_at: float | None = None
        self._unreadable: set[str] = set()

    @property
    def num_unreadable(self) -> int:
        """Spools of dead gateways that could not be read when it was tried last."""
        return len(self._unreadable)

    async def replay(self) -> int:
        """Applies what dead gateways left, from their checkpoints on; how many spools are done now.

        Raises `StoreUnavailable`; what is not done is tried again next time. One that cannot be read is
        told once and holds no other up.
        """
        unfinished = await asyncio.to_thread(self._unfinished)
        self._unreadable &= {folder.name for folder in unfinished}
        return sum([await self._try_to_replay(folder) for folder in unfinished])

    async def sweep(self) -> None:
        """Once an hour: removes segments of dead spools that are older than `keep_days`."""
        now = self._clock()
        if self._swept_at is None or now - self._swept_at >= _SWEEP_EVERY_S:
            self._swept_at = now
            await asyncio.to_thread(self._remove_old, utc_day(now - self._keep_days * _DAY_S))

    def _unfinished(self) -> list[Path]:
        return [folder for folder in spools(self._base) if not is_done(folder)]

    async def _try_to_replay(self, folder: Path) -> bool:
        try:
            is_replayed = await self._replay(folder)
        except OSError as error:
            if folder.name not in self._unreadable:
                log.error("the spool of a dead gateway, %s, cannot be read: %s", folder.name, error)
            self._unreadable.add(folder.name)
            return False
        self._unreadable.discard(folder.name)
        return is_replayed

    async def _replay(self, folder: Path) -> bool:
        lock = claim(folder)
        if lock is None:
            return False
        with lock:
            if is_done(folder):
                return False
            applier = Applier(folder, self._ledger, self._clock, self._figures)
            while await applier.apply_some():
                pass
            mark_done(folder)
        log.info("the spool of a dead gateway, %s, is applied: %d lines", folder.name, applier.num_passed)
        return True

    def _remove_old(self, first_kept: str) -> None:
        for folder in filter(is_done, spools(self._base)):
            try:
                self._remove_days(folder, first_kept)
            except OSError as error:
                log.error("the spool %s is old and cannot be removed: %s", folder.name, error)

    def _remove_days(self, folder: Path, first_kept: str) -> None:
        lock = claim(folder)
        if lock is None:
            return
        with lock:
            days = days_of(folder)
            old = [day for day in days if day < first_kept]
            for day in old:
                (folder / f"{day}{SUFFIX}").unlink()
            if old == days:
                remove(folder)
