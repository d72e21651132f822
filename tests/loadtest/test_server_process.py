"""A server of our own: awaited until it is ready, quoted when it dies, stopped whatever happens."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtest import server_process
from loadtest.server_process import CannotStart, served

READY_THEN_WAIT = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
print("starting", flush=True)
print("Ready after 0.1 s.", flush=True)
signal.pause()
"""
DIES = "import sys; print('one\\ntwo'); sys.exit('no such model')"


@pytest.fixture(autouse=True)
def lifted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Where limits were lifted, with which key."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(server_process, "lift_limits", lambda url, key: calls.append((url, key)))
    return calls


class Program:
    """Runs a script where `headrace serve` would run, with `run_dir` for one; keeps its flags and process."""

    def __init__(self, script: str, run_dir: Path = Path("/nowhere")) -> None:
        self._script = script
        self._run_dir = run_dir
        self.arguments: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        self.arguments = list(arguments)
        (log.parent / "demo.key").write_text("hr-demo\n")
        (log.parent / "admin.key").write_text("hr-admin\n")
        (log.parent / "run").symlink_to(self._run_dir)
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self._script], stdout=output, stderr=subprocess.STDOUT
            )
        return self.process


def test_a_server_is_there_inside_the_block_and_asked_to_stop_after_it(
    monkeypatch: pytest.MonkeyPatch, lifted: list[tuple[str, str]]
) -> None:
    program = Program(READY_THEN_WAIT)
    monkeypatch.setattr(server_process, "_start", program.start)
    with served(["--model=tape:"]) as server:
        assert lifted == [(f"http://127.0.0.1:{server.port}", "hr-admin")]
        assert program.process is not None
        assert program.process.poll() is None
        *arguments, last = program.arguments
        assert arguments == ["-m", "headrace", "serve", "--model=tape:", f"--port={server.port}"]
        state_dir = Path(last.removeprefix("--state-dir="))
        assert server.key == "hr-demo"
        assert state_dir.exists()
    assert program.process.returncode == 7
    assert not state_dir.exists()


def test_nothing_of_its_run_directory_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launch.log").touch()
    (tmp_path / "logs.lock").touch()
    monkeypatch.setattr(server_process, "_start", Program(READY_THEN_WAIT, tmp_path / "logs").start)
    with served([]):
        assert (tmp_path / "logs" / "launch.log").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_server_is_stopped_when_the_block_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(READY_THEN_WAIT)
    monkeypatch.setattr(server_process, "_start", program.start)

    def fail() -> None:
        with served([]):
            raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        fail()
    assert program.process is not None
    assert program.process.poll() == 7


def test_a_server_that_dies_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(DIES)
    monkeypatch.setattr(server_process, "_start", program.start)
    with pytest.raises(CannotStart, match=r"a server did not start: .*no such model"), served([]):
        pytest.fail("there is no server")


def test_a_server_that_is_never_ready_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(READY_THEN_WAIT.replace("Ready", "Nearly"))
    monkeypatch.setattr(server_process, "_start", program.start)
    monkeypatch.setattr(server_process, "START_TIMEOUT_S", 0.0)
    with pytest.raises(CannotStart), served([]):
        pytest.fail("there is no server")
    assert program.process is not None
    assert program.process.poll() is not None


def test_no_flag_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REPLICAS", "9")
    monkeypatch.setenv("UNRELATED", "1")
    passed_on = server_process.without_settings()
    assert "HEADRACE_REPLICAS" not in passed_on
    assert passed_on["UNRELATED"] == "1"
