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

ASKS_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which an operator, a terminal or an init system asks for a stop."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the new parent of its orphaned descendants (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """For a child, between fork and exec: SIGTERM when the parent's thread ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def sweep_descendants(grace_s: float) -> None:
    """Ends every descendant: one SIGTERM to each, SIGKILL after `grace_s`. Returns once none is left."""
    asked: set[psutil.Process] = set()
    deadline = time.monotonic() + grace_s
    while children := psutil.Process().children(recursive=True):
        is_over = time.monotonic() >= deadline
        for child in children:
            if is_over or child not in asked:
                _end(child, kill=is_over)
        asked.update(children)
        psutil.wait_procs(children, timeout=0.2)


def _end(process: psutil.Process, *, kill: bool) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill() if kill else process.terminate()


def supervise(command: list[str], environment: Mapping[str, str]) -> int:
    """Runs `command` to its end and returns its exit status, 2 if a signal ended it.

    The first of `ASKS_TO_STOP` asks it to drain (SIGINT); the second ends everything at once. It starts
    with these signals blocked and unblocks them once it can be asked, so that none comes too early.
    """
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKS_TO_STOP)
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

    for number in ASKS_TO_STOP:
        signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_STOP)
    status = child.wait()
    sweep_descendants(grace_s=0 if status < 0 else 2)
    if status < 0:
        print(f"headrace: the launcher was ended by signal {-status}; all processes ended", file=sys.stderr)
        return 2
    return status
