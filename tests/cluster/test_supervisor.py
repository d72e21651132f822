"""The supervisor on real processes: whatever way it or its child ends, nothing is left behind.

Every process of a family holds the write end of one pipe, so its end of file proves that all are gone.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.family_member import MODULE

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 10
MARK = "HEADRACE_TEST_FAMILY"


class Family:
    """One first process, what it starts, and the pipe that all of them speak into."""

    def __init__(self, *role: str, mark: str) -> None:
        self.mark = mark
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *role],
            cwd=REPOSITORY,
            env=os.environ | {MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def hears(self, *words: str) -> dict[str, str]:
        """Reads until each of `words` has begun a line, in any order; what followed it there."""
        missing, heard = list(words), {}
        while missing:
            line = self._line()
            assert line, f"all ended before {missing} were said"
            word, _, rest = line.strip().partition(" ")
            if word in missing:
                missing.remove(word)
                heard[word] = rest
        return heard

    def _line(self) -> str:
        """A line, byte by byte, so that nothing of the next one is held in a buffer."""
        assert self.process.stdout is not None
        pipe, line = self.process.stdout.fileno(), b""
        while not line.endswith(b"\n"):
            assert select.select([pipe], [], [], TIMEOUT_S)[0], "nothing was said in time"
            byte = os.read(pipe, 1)
            if not byte:
                break
            line += byte
        return line.decode()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, list[str], str]:
        """The first process's exit status, what was said since, and stderr, once *all* have ended."""
        said, complained = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, said.decode().splitlines(), complained.decode()

    def clear(self) -> None:
        """Ends what a failed test left: whoever carries the mark, wherever it went."""
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get(MARK) == self.mark:
                process.kill()
        self.process.communicate()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., Family]]:
    families: list[Family] = []

    def start(*role: str) -> Family:
        families.append(Family(*role, mark=str(tmp_path)))
        return families[-1]

    yield start
    for one in families:
        one.clear()


Start = Callable[..., Family]


@pytest.mark.parametrize("status", [0, 7])
def test_the_exit_status_is_the_child_s_which_has_its_own_session_and_the_given_environment(
    family: Start, status: int
) -> None:
    assert family("supervisor", "exits", str(status)).end() == (
        status,
        ["given yes", "leads its session True"],
        "",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_request_to_stop_interrupts_the_child_which_drains(
    family: Start, number: signal.Signals
) -> None:
    one = family("supervisor", "drains")
    one.hears("here")
    one.process.send_signal(number)
    assert one.end() == (0, ["drained SIGINT"], "")


def test_a_request_before_the_child_can_be_asked_is_kept_for_it(family: Start) -> None:
    one = family("supervisor", "imports")
    one.hears("here")
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == (0, ["kept SIGINT"], "")


def test_a_second_request_ends_all_at_once_with_130(family: Start) -> None:
    one = family("supervisor", "hangs", "stubborn")
    one.hears("here", "hanging")
    one.process.send_signal(signal.SIGINT)
    one.hears("asked")
    one.process.send_signal(signal.SIGINT)
    assert one.end() == (130, [], "")


def test_what_an_ended_child_leaves_may_tidy_up_and_is_ended_a_daemon_too(family: Start) -> None:
    one = family("supervisor", "parent", "5", "tidy", "daemon")
    one.hears("here", "here")
    one.go()
    assert one.end() == (5, ["tidied"], "")


def test_a_killed_child_is_told_and_what_it_leaves_is_killed(family: Start) -> None:
    one = family("supervisor", "hangs", "stubborn", "daemon")
    child = one.hears("here", "here", "hanging")["hanging"]
    os.kill(int(child), signal.SIGKILL)
    status, said, complaint = one.end()
    assert (status, said) == (2, [])
    assert complaint == "headrace: the launcher was ended by signal 9; all processes ended\n"


def test_a_killed_supervisor_takes_the_launcher_and_all_of_its_own_along(family: Start) -> None:
    one = family("supervisor", "launcher", "stubborn", "daemon")
    one.hears("here", "here", "launching")
    one.process.kill()
    status, said, _ = one.end()
    assert (status, said[0]) == (-signal.SIGKILL, "told SIGTERM")


def test_a_sweep_kills_who_does_not_heed_one_request(family: Start) -> None:
    one = family("sweeper", "0.5", "stubborn", "daemon", "sleeper")
    one.hears("here", "here", "here")
    one.go()
    assert one.end() == (0, ["asked", "swept"], "")


def test_a_sweep_without_grace_asks_nobody(family: Start) -> None:
    one = family("sweeper", "0", "stubborn")
    one.hears("here")
    one.go()
    assert one.end() == (0, ["swept"], "")


def test_a_sweep_of_nobody_is_done_at_once(family: Start) -> None:
    one = family("sweeper", "60")
    one.go()
    assert one.end() == (0, ["swept"], "")
