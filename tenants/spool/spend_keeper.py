"""A record that was lost is written back by one gateway, of one state directory: what the spools of other
machines tell is missing in it until each of them has told.

The epoch names a life of the record, and a file the one that has been told. Another life than that gets all
of this month, at once: the ledger knows requests by id, so what it has already is no matter.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tenants.private_file import write_private

log = logging.getLogger("headrace.record")

FILE_NAME = "epoch"
_LOCK_NAME = "epoch.lock"


class HasEpoch(Protocol):
    async def epoch(self) -> str | None:
        """Names this life of the record; None: it is lost. Raises `StoreUnavailable`."""


class SpendKeeper:
    """Owns `<state-dir>/epoch`: the life of the record that knows what this state directory's spools tell.

    Where there is none yet, that is the present one. Several gateways of a state directory may do this: one
    at a time tells, and the others see that it did. `rebuild` applies the month.
    """

    def __init__(self, record: HasEpoch, state_dir: Path, rebuild: Callable[[], Awaitable[int]]) -> None:
        self._record = record
        self._path = state_dir / FILE_NAME
        self._lock = state_dir / _LOCK_NAME
        self._rebuild = rebuild
        self._told: str | None = None
        self._written: str | None = None

    async def keep_up(self) -> bool:
        """Whether it told the record something. To be called every few seconds while the record answers.

        Raises `StoreUnavailable`, or `OSError` if the file cannot be written; the next call goes on.
        """
        epoch = await self._record.epoch()
        if epoch is None or epoch == self._written:
            return False
        with self._alone() as is_alone:
            return is_alone and await self._tell(epoch)

    async def _tell(self, epoch: str) -> bool:
        last = self._last()
        is_new = last is not None and epoch not in (last, self._told)
        if is_new:
            num_lines = await self._rebuild()
            if await self._record.epoch() != epoch:
                return False  # lost again meanwhile
            log.warning("the record was lost; %d lines of this month's spools are told to it", num_lines)
        self._told = epoch
        await asyncio.to_thread(write_private, self._path, epoch.encode())
        self._written = epoch
        return is_new

    def _last(self) -> str | None:
        """The file counts first: another gateway may have told a later life."""
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return self._told

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other gateway of this state directory is at it."""
        self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._lock, "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
