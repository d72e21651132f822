"""A gateway's durable record of what it settled and adjusted: what was appended is on the disk, whatever
dies next.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import IO

from tenants.spool.folder import make
from tenants.spool.line import Entry, encode
from tenants.spool.reading import START, SUFFIX, Position, utc_day
from tenants.spool.segment import Segment, Sync

COLLECT_S = 0.005
"""How long a group of lines waits for more of them: one sync pays for all."""


class _Group:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.written: asyncio.Future[None]


class Spool:
    """Owned by one gateway, who holds the folder's lock for its life; one thread of ours writes.

    `clock` tells Unix time. Call everything from one event loop.
    """

    def __init__(
        self,
        folder: Path,
        lock: IO[bytes],
        clock: Callable[[], float],
        sync: Sync = os.fsync,
        collect: Callable[[], None] = lambda: time.sleep(COLLECT_S),
    ) -> None:
        self.folder = folder
        self._lock = lock
        self._clock = clock
        self._sync = sync
        self._collect = collect
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._segment: Segment | None = None
        self._gathering: _Group | None = None
        self._guard = Lock()  # of `_gathering`, between the loop and the writer
        self._day = ""
        self.end: Position = START
        """Behind the last line that is on the disk."""
        self.num_lines = 0
        """On the disk."""
        self.num_failed_writes = 0
        """Groups of lines that the disk did not take."""

    @classmethod
    def open(cls, base: Path, gateway_id: str, clock: Callable[[], float]) -> Spool:
        """A new one, `<base>/<gateway_id>`. Raises `SpoolTaken` or `OSError`."""
        folder, lock = make(base, gateway_id)
        return cls(folder, lock, clock)

    async def append(self, entry: Entry) -> None:
        """Returns when its line is on the disk. Raises `OSError`; there is nothing of it there then.

        A caller that is cancelled has written all the same.
        """
        await asyncio.shield(self._join_group(encode(entry)))

    async def close(self) -> None:
        """Writes what was appended and gives up the folder."""
        await asyncio.to_thread(self._writer.shutdown)
        if self._segment is not None:
            self._segment.close()
        self._lock.close()

    def _join_group(self, line: bytes) -> asyncio.Future[None]:
        with self._guard:
            group = self._gathering
            if group is None:
                group = _Group()
                group.written = asyncio.wrap_future(self._writer.submit(self._write, group))
                self._gathering = group
            group.lines.append(line)
            return group.written

    def _write(self, group: _Group) -> None:
        """In the writer's thread."""
        self._collect()
        with self._guard:
            self._gathering = None
        try:
            segment = self._today()
            segment.append(b"".join(group.lines))
        except OSError:
            self.num_failed_writes += 1
            raise
        self.end = Position(self._day, segment.size)
        self.num_lines += len(group.lines)

    def _today(self) -> Segment:
        """A clock that is set back opens no earlier segment: lines stay in their order."""
        day = max(utc_day(self._clock()), self._day)
        if self._segment is None or day != self._day:
            segment = Segment(self.folder / f"{day}{SUFFIX}", self._sync)
            if self._segment is not None:
                self._segment.close()
            self._segment, self._day = segment, day
        return self._segment
