"""Runs the launcher as a child and leaves no process behind, however either of them ends.

Ray starts a dozen processes and some outlive a killed driver. Both the supervisor and the launcher
are *subreapers*: an orphan among their descendants becomes their child, so sweeping one's children
ends everything that was ever started. The launcher gets SIGTERM when the supervisor dies.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the new parent of its orphaned descendants (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """For a child, between fork and exec: SIGTERM when the parent's thread ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def sweep_descendants(grace_s: float) -> int:
    """Ends every descendant: SIGTERM, then after `grace_s` SIGKILL. Returns how many there were."""
    found = 0
    deadline = time.monotonic() + grace_s
    while children := psutil.Process().children(recursive=True):
        found = max(found, len(children))
        for child in children:
            _end(child, kill=time.monotonic() >= deadline)
        psutil.wait_procs(children, timeout=0.2)
    return found


def _end(process: psutil.Process, *, kill: bool) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill() if kill else process.terminate()


def supervise(command: list[str], environment: Mapping[str, str]) -> int:
    """Runs `command` to its end and returns its exit status.

    The first SIGINT, SIGTERM or SIGHUP asks it to drain (SIGINT); the second ends everything at once.
    """
    adopt_orphans()
    child = subprocess.Popen(
        command, env=dict(environment), start_new_session=True, preexec_fn=die_with_parent
    )
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            sweep_descendants(grace_s=0)
            sys.exit(130)
        asked = True
        child.send_signal(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    status = child.wait()
    sweep_descendants(grace_s=0 if status < 0 else 2)
    if status < 0:
        print(f"headrace: the launcher was ended by signal {-status}; all processes ended", file=sys.stderr)
        return 2
    return status
