"""The copy of the record in a file, and who writes it.

It is written within a second of each change (`keep_up` is called every 0.5 s). That second is the window:
what was changed in it and lost with Redis is undone when the copy is written back, so a key that was deleted
just then works again. The audit log says when that happened and how old the copy was (`record.restore`).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from tenants.private_file import write_private
from tenants.snapshot import Snapshot
from tenants.store import CorruptRecord, StoreUnavailable

log = logging.getLogger("headrace.record")

FILE_NAME = "snapshot.json"
_LOCK_NAME = "snapshot.lock"


class SnapshotError(StoreUnavailable):
    """There is no copy that can be used; says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "empty")


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Raises `OSError`; the file of before stays then."""
    write_private(path, msgspec.json.encode(snapshot))


def read_snapshot(path: Path, mark: str) -> Snapshot | None:
    """None if there is none. Raises `SnapshotError` for one that is not whole or of another `mark`."""
    try:
        snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read ({type(error).__name__})") from error
    except (msgspec.DecodeError, RecursionError):
        raise SnapshotError(f"{path} is damaged") from None  # the cause quotes what was found
    if snapshot.mark != mark:
        raise SnapshotError(f"{path} was written under another secret")
    if not snapshot.holds_together():
        raise SnapshotError(f"{path} is damaged: a tenant, tier or key is missing or there twice")
    return snapshot


class Copied(Protocol):
    async def change_count(self) -> int: ...

    async def snapshot(self, now: float) -> Snapshot: ...


class SnapshotKeeper:
    """Owns `<state-dir>/snapshot.json` while it holds the lock beside it.

    So one gateway of a state directory writes, and when it ends another goes on. `wall_clock` is Unix time.
    """

    def __init__(self, record: Copied, state_dir: Path, wall_clock: Callable[[], float]) -> None:
        self._record = record
        self._path = state_dir / FILE_NAME
        self._lock = state_dir / _LOCK_NAME
        self._wall_clock = wall_clock
        self._descriptor: int | None = None
        self._written: int | None = None
        self.is_behind = False
        """The record has changed and the copy could not be written."""

    async def keep_up(self) -> bool:
        """Writes the copy if the record has changed; whether it did. To be called every 0.5 s.

        Raises `StoreUnavailable`, also for a record that came back empty. If the record is damaged or the
        file can't be written, the copy of before stays and `is_behind`.
        """
        if not self._is_writer():
            return False
        if await self._record.change_count() == self._written and self._path.exists():
            return False
        try:
            snapshot = await self._record.snapshot(self._wall_clock())
            await asyncio.to_thread(write_snapshot, self._path, snapshot)
        except (CorruptRecord, OSError) as error:
            if not self.is_behind:
                log.error("the copy of the record cannot be written: %s", error)
            self.is_behind = True
            return False
        self._written = snapshot.change_count
        self.is_behind = False
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_writer(self) -> bool:
        if self._descriptor is None:
            self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True
