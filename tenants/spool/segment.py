"""The file of one day: grows by whole groups of lines, each on the disk before anybody hears of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Sync = Callable[[int], None]
"""`os.fsync`, or what stands for it."""


class Segment:
    """Owned by its spool's writer. `size` bytes of it count; what a failed write left behind does not."""

    def __init__(self, path: Path, sync: Sync) -> None:
        """Makes the file, its name durable too. Raises `OSError`."""
        self._sync = sync
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._has_rest = True
        self.size = os.fstat(self._file).st_size
        try:
            _sync_folder(path.parent, sync)
        except OSError:
            self.close()
            raise

    def append(self, group: bytes) -> None:
        """All of `group` is on the disk when this returns, none of it when it raises `OSError`.

        A file that was removed under us would take it, and nobody would ever find it.
        """
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "the file was removed")
        if self._has_rest:
            os.ftruncate(self._file, self.size)
        self._has_rest = True
        try:
            _write_all(self._file, group, self.size)
            self._sync(self._file)
        except OSError:
            with suppress(OSError):  # then the next append does it
                os.ftruncate(self._file, self.size)
            raise
        self._has_rest = False
        self.size += len(group)

    def close(self) -> None:
        os.close(self._file)


def _write_all(file: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


def _sync_folder(folder: Path, sync: Sync) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
