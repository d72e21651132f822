"""Programs for the supervisor's tests: `python -m tests.cluster.family_member ROLE [ARGUMENTS]`.

Each says what it does on stdout, one unbuffered line at a time; all of a family share that pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NoReturn

from cluster.supervisor import ASKS_TO_STOP, adopt_orphans, supervise, sweep_descendants

MODULE = "tests.cluster.family_member"


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def start(*role: str) -> None:
    subprocess.Popen([sys.executable, "-m", MODULE, *role])


def wait() -> NoReturn:
    while True:
        signal.pause()


def supervisor(*role: str) -> NoReturn:
    sys.exit(supervise([sys.executable, "-m", MODULE, *role], os.environ | {"GIVEN": "yes"}))


def exits(status: str) -> NoReturn:
    say("given", os.environ["GIVEN"])
    say("leads its session", os.getsid(0) == os.getpid())
    sys.exit(int(status))


def sleeper(word: str = "here") -> NoReturn:
    say(word, os.getpid())
    wait()


def tidy() -> NoReturn:
    def leave(number: int, frame: object) -> NoReturn:
        say("tidied")
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    sleeper()


def stubborn() -> NoReturn:
    """Only SIGKILL ends it; it tells how often it was asked."""
    signal.signal(signal.SIGTERM, lambda number, frame: say("asked"))
    sleeper()


def daemon() -> None:
    """Leaves session and parent, as daemons do."""
    for leave in (os.setsid, lambda: None):
        if os.fork():
            os._exit(0)
        leave()
    sleeper()


def parent(status: str, *roles: str) -> None:
    """Starts each role and leaves them behind once it is told to."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_STOP)
    for role in roles:
        start(role)
    sys.stdin.readline()
    sys.exit(int(status))


def sweeper(grace_s: str, *roles: str) -> None:
    adopt_orphans()
    for role in roles:
        start(role)
    sys.stdin.readline()
    sweep_descendants(float(grace_s))
    say("swept")


def drains() -> NoReturn:
    """Asked once, it ends in order; it can be asked from its first word on."""

    def drain(number: int, frame: object) -> NoReturn:
        say("drained", signal.Signals(number).name)
        sys.exit(0)

    signal.signal(signal.SIGINT, drain)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_STOP)
    sleeper()


def imports() -> None:
    """Cannot be asked yet: proves that a request is kept for it."""
    say("here")
    while not (kept := signal.sigpending()):
        os.sched_yield()
    say("kept", *(signal.Signals(number).name for number in kept))


def hangs(*roles: str) -> NoReturn:
    """Heeds no request."""
    for number in ASKS_TO_STOP:
        signal.signal(number, lambda number, frame: say("asked"))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_STOP)
    for role in roles:
        start(role)
    sleeper("hanging")


def launcher(*roles: str) -> NoReturn:
    """Ends its descendants at SIGTERM, as the real one does."""

    def end(number: int, frame: object) -> NoReturn:
        say("told", signal.Signals(number).name)
        sweep_descendants(grace_s=0.1)
        sys.exit(0)

    adopt_orphans()
    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_STOP)
    for role in roles:
        start(role)
    sleeper("launching")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
