"""What an operator reads while a cluster comes up: one line a stage, and which one a failure belongs to."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from cluster.greeting import front_address, greet
from cluster.settings import ServeSettings
from cluster.stages import Stages, StartError
from cluster.start_reports import StageReport
from cluster.start_watch import START_TIMEOUT_S, StartWatch
from tenants.bootstrap import KeyFiles
from tests.builders import FakeClock


class Shown(Console):
    """A console that keeps what it printed."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), width=60)

    @property
    def lines(self) -> list[str]:
        assert isinstance(self.file, io.StringIO)
        return [line.rstrip() for line in self.file.getvalue().splitlines()]


class Rig:
    """A start whose replicas say what the test wrote for each look; a look takes 1 s."""

    def __init__(self) -> None:
        self.clock = FakeClock(100.0)
        self.console = Shown()
        self.stages = Stages(self.console, self.clock)
        self.said: list[list[StageReport]] = []
        self.failure: StartError | None = None
        self.watch = StartWatch(
            self.stages, self, lambda: self.failure, self.clock, lambda: self.clock.advance(1.0)
        )

    def pop_all(self) -> list[StageReport]:
        return self.said.pop(0) if self.said else []


@pytest.fixture
def rig() -> Rig:
    return Rig()


def passed(stage: str, seconds: float = 1.0, *, replica: str = "a", detail: str = "") -> StageReport:
    return StageReport(replica, stage, seconds, detail)


def failed(stage: str) -> StageReport:
    return StageReport("b", stage, 0.0, error="out of memory", remedy="use less")


class TestStages:
    def test_a_stage_is_shown_with_its_time_and_details(self, rig: Rig) -> None:
        with rig.stages.stage("environment") as detail:
            detail("tiny")
            detail("float32")
            rig.clock.advance(2.5)
        assert rig.console.lines == ["  environment    2.5 s   tiny; float32"]
        assert rig.stages.elapsed_s == 2.5

    def test_a_stage_that_fails_is_the_current_one_and_has_no_line(self, rig: Rig) -> None:
        with rig.stages.stage("Redis"):
            pass
        with pytest.raises(StartError), rig.stages.stage("Ray"):
            raise StartError("no", "do")
        assert rig.stages.current == "Ray"
        assert rig.console.lines == ["  Redis          0.0 s"]

    def test_before_all_stages_it_is_the_environment(self, rig: Rig) -> None:
        assert rig.stages.current == "environment"

    def test_a_long_line_is_not_broken(self, rig: Rig) -> None:
        rig.stages.done("weights", 1.0, "x" * 100)
        assert rig.console.lines == [f"  weights        1.0 s   {'x' * 100}"]


class TestReplicas:
    def test_a_stage_is_passed_with_the_last_replica_and_takes_as_long_as_the_slowest(self, rig: Rig) -> None:
        rig.said = [
            [passed("weights", 3.0, detail="slow one")],
            [passed("weights", 2.0, replica="b"), passed("warm-up", 0.5, replica="b")],
            [passed("warm-up", 0.25)],
        ]
        rig.watch.await_replicas(["weights", "warm-up"], 2)
        assert rig.console.lines == ["  weights        3.0 s   slow one", "  warm-up        0.5 s"]
        assert rig.clock.now == 103.0

    def test_one_that_failed_names_the_stage_that_it_failed_in(self, rig: Rig) -> None:
        """Both reports come in one look, while the launcher still waits for the first stage."""
        rig.said = [[passed("weights"), failed("KV pool")]]
        with pytest.raises(StartError, match="out of memory") as caught:
            rig.watch.await_replicas(["weights", "KV pool"], 2)
        assert caught.value.remedy == "use less"
        assert rig.stages.current == "KV pool"

    def test_one_that_died_without_a_word_is_known_from_serve(self, rig: Rig) -> None:
        rig.failure = StartError("replica died", "see the log")
        with pytest.raises(StartError, match="replica died"):
            rig.watch.await_replicas(["weights"], 1)
        assert rig.stages.current == "weights"

    def test_what_a_replica_says_goes_before_what_serve_says(self, rig: Rig) -> None:
        rig.failure = StartError("deployment failed", "see the log")
        rig.said = [[failed("weights")]]
        with pytest.raises(StartError, match="out of memory"):
            rig.watch.await_replicas(["weights"], 1)

    def test_that_never_come_are_given_up(self, rig: Rig) -> None:
        with pytest.raises(StartError, match="not done after 600 s"):
            rig.watch.await_replicas(["weights"], 1)
        assert rig.clock.now == 100.0 + START_TIMEOUT_S + 1


class TestReady:
    def test_the_port_is_asked_until_it_answers(self, rig: Rig) -> None:
        rig.watch.await_ready(lambda: rig.clock.now >= 104)
        assert rig.console.lines == ["  ready          4.0 s"]

    def test_a_failure_on_the_way_ends_it(self, rig: Rig) -> None:
        rig.said = [[], [failed("replica")]]
        with pytest.raises(StartError, match="out of memory"):
            rig.watch.await_ready(lambda: False)
        assert rig.clock.now == 101.0
        assert rig.stages.current == "replica"

    def test_a_port_that_never_answers_is_given_up(self, rig: Rig) -> None:
        with pytest.raises(StartError, match="not done after 600 s"):
            rig.watch.await_ready(lambda: False)
        assert rig.stages.current == "ready"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("gpu.example", "http://gpu.example:8000"),
    ],
)
def test_the_address_that_is_shown_can_be_reached_from_here(host: str, url: str) -> None:
    assert front_address(host, 8000) == url


def test_the_greeting_s_line_survives_a_shell(rig: Rig) -> None:
    greet(rig.console, ServeSettings(), "it's [tiny]", KeyFiles(Path("my keys/demo.key"), None))
    shown = "\n".join(rig.console.lines)
    assert "Serving it's [tiny] at http://127.0.0.1:8000" in shown
    assert """-H "Authorization: Bearer $(cat 'my keys/demo.key')" \\""" in shown
    assert """-d '{"model": "it'"'"'s [tiny]", "messages": [""" in shown


def test_a_deleted_key_is_said_to_be_deleted_and_has_no_line_to_paste(rig: Rig) -> None:
    greet(rig.console, ServeSettings(), "tiny", KeyFiles(None, Path("admin.key")))
    shown = "\n".join(rig.console.lines)
    assert "Key: deleted   admin key: admin.key" in shown
    assert "curl" not in shown
