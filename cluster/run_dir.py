"""The run directory: where one running cluster keeps its sockets, Ray's session and its addresses.

It is short (`/tmp/hr-<uid>/<6 hex>`): HAProxy takes a socket's path of 97 bytes at most, and Ray puts
a node id of 56 into it. `<state-dir>/run` points to it. Its logs stay until the next start.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import psutil


class RunDirBusy(Exception):
    """Another cluster runs on this state directory."""


class RunDir:
    """Owned by one launcher at a time, by lock; what a crashed one left is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @classmethod
    def claim(cls, state_dir: Path, temp: Path = Path("/tmp")) -> RunDir:
        """Takes the run directory of `state_dir`, empty, in `temp`.

        Raises `RunDirBusy`, or `OSError` where something that is not ours is in the way.
        """
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        base = temp / f"hr-{os.getuid()}"
        _make_private(base)
        name = blake2b(str(state_dir.resolve()).encode(), digest_size=3).hexdigest()
        run_dir = cls(base / name)
        run_dir._take_lock(base / f"{name}.lock")
        try:
            run_dir._make_empty(state_dir / "run")
        except OSError:
            run_dir.release()
            raise
        return run_dir

    @classmethod
    def of_node(cls, temp: Path = Path("/tmp")) -> RunDir:
        """The one that Ray's nodes on this machine share if they run this code: it holds HAProxy's files."""
        name = blake2b(str(Path(__file__).resolve()).encode(), digest_size=3).hexdigest()
        run_dir = cls(temp / f"hr-{os.getuid()}" / name)
        run_dir._make()
        return run_dir

    @staticmethod
    def remove(state_dir: Path) -> None:
        """Takes away what the stopped cluster of `state_dir`, if there was one, left for people: its logs."""
        link = state_dir / "run"
        if link.is_symlink():
            path = link.readlink()
            shutil.rmtree(path, ignore_errors=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            link.unlink()

    def _make(self) -> None:
        _make_private(self.path.parent)
        _make_private(self.path)

    def _take_lock(self, path: Path) -> None:
        lock = open(path, "a")  # noqa: SIM115  held for the life of the process
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunDirBusy from None
        self._lock = lock

    def _make_empty(self, link: Path) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)
        link.unlink(missing_ok=True)
        link.symlink_to(self.path)

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    @property
    def haproxy(self) -> Path:
        return self.path / "h"

    def add_target(self, metrics_address: str, labels: dict[str, str]) -> None:
        """Puts one process into `targets.json`, in Prometheus' file_sd format, under a lock, atomically.

        Processes that have died are moved to `gone.json`: who replaces them comes by here. On a node where
        no launcher runs, this makes the directory.
        """
        self._make()
        mine = {"targets": [metrics_address], "labels": {**labels, "pid": str(os.getpid())}}
        self._sift_targets(psutil.pid_exists, mine)

    def drop_target(self) -> None:
        """Moves this process to `gone.json`: it leaves as it was asked to, and nobody may replace it."""
        self._sift_targets(lambda pid: pid != os.getpid())

    def _sift_targets(self, stays: Callable[[int], bool], *new: dict[str, Any]) -> None:
        path, gone_path = self.path / "targets.json", self.path / "gone.json"
        with open(self.path / "targets.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            targets = _read_targets(path)
            staying = [one for one in targets if stays(int(one["labels"]["pid"]))]
            if gone := [one for one in targets if one not in staying]:
                _write_targets(gone_path, _read_targets(gone_path) + gone)
            _write_targets(path, [*staying, *new])

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()


def _read_targets(path: Path) -> list[dict[str, Any]]:
    targets: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return targets


def _write_targets(path: Path, targets: list[dict[str, Any]]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(targets, indent=1))
    fresh.replace(path)


def _make_private(path: Path) -> None:
    """A directory in /tmp that only we can write; refuses one that somebody else put there."""
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private directory of this user")
