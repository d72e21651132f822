"""A spool's folder beside its segments: the lock that its owner holds, and how far it has been applied.

A folder appears under its name with its lock already taken, so whoever finds one without an owner knows
that its gateway is dead.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

import msgspec

from tenants.spool.reading import START, Position

LOCK = "lock"
_CHECKPOINT = "checkpoint"
_DONE = "done"
_IN_THE_MAKING = "."


class SpoolTaken(Exception):
    """There is a spool of that name already."""


def spools(base: Path) -> list[Path]:
    """All spools below `base`, by name; none if there is no such folder."""
    if not base.is_dir():
        return []
    found = (path for path in base.iterdir() if not path.name.startswith(_IN_THE_MAKING))
    return sorted(path for path in found if path.is_dir())


def make(base: Path, name: str) -> tuple[Path, IO[bytes]]:
    """A new spool and its lock, held while the file is open. Raises `SpoolTaken` or `OSError`."""
    making, folder = base / f"{_IN_THE_MAKING}{name}.{os.getpid()}", base / name
    making.mkdir(mode=0o700, parents=True)
    lock = open(making / LOCK, "ab")  # noqa: SIM115  held for the life of the spool
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        making.rename(folder)
    except OSError:
        lock.close()
        (making / LOCK).unlink()
        making.rmdir()
        if folder.exists():
            raise SpoolTaken(f"{folder} is there already") from None
        raise
    return folder, lock


def claim(folder: Path) -> IO[bytes] | None:
    """The lock of a spool whose owner is dead; None if it lives, or somebody else was faster."""
    try:
        lock = open(folder / LOCK, "r+b")  # noqa: SIM115  the caller closes it
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    if not (folder / LOCK).exists():  # removed by who held it before
        lock.close()
        return None
    return lock


def is_done(folder: Path) -> bool:
    """Whether all of a dead spool has been applied; one that cannot be read is not done."""
    return os.path.exists(folder / _DONE)


def mark_done(folder: Path) -> None:
    (folder / _DONE).touch(mode=0o600)


def remove(folder: Path) -> None:
    """Takes away a spool without segments. Only for who holds its lock."""
    for name in (_CHECKPOINT, f"{_CHECKPOINT}.new", _DONE, LOCK):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def read_checkpoint(folder: Path) -> Position:
    """Up to where all had been applied; the start if that is not known, which only costs repeats."""
    try:
        return msgspec.json.decode((folder / _CHECKPOINT).read_bytes(), type=Position)
    except (OSError, msgspec.DecodeError):
        return START


def write_checkpoint(folder: Path, position: Position) -> None:
    """Raises `OSError`; the old one stays then."""
    fresh = folder / f"{_CHECKPOINT}.new"
    fresh.write_bytes(msgspec.json.encode(position))
    fresh.replace(folder / _CHECKPOINT)
