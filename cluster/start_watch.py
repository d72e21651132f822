"""Follows a start that happens elsewhere: replicas load in their own processes, Serve opens the port."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Sequence
from typing import Protocol

from cluster.stages import Stages, StartError
from cluster.start_reports import StageReport

START_TIMEOUT_S = 600.0
"""For the replicas, and again for the port."""


class Reports(Protocol):
    def pop_all(self) -> list[StageReport]: ...


class ClosableReports(Reports, Protocol):
    def close(self) -> None: ...


class StartWatch:
    """`deploy_failure()` is what Serve says of a deployment that failed; `pause()` waits a little between
    two looks; `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        stages: Stages,
        reports: Reports,
        deploy_failure: Callable[[], StartError | None],
        clock: Callable[[], float],
        pause: Callable[[], None],
    ) -> None:
        self._stages = stages
        self._reports = reports
        self._deploy_failure = deploy_failure
        self._clock = clock
        self._pause = pause
        self._passed: dict[str, list[StageReport]] = {}

    @property
    def passed(self) -> list[StageReport]:
        """All that was told of stages that have passed."""
        return [report for reports in self._passed.values() for report in reports]

    def await_replicas(self, names: Sequence[str], num_replicas: int) -> None:
        """Shows each stage once the last replica has passed it, with the slowest one's time.

        Raises `StartError` for a replica that failed, for a failed deployment, or after `START_TIMEOUT_S`.
        """
        deadline = self._clock() + START_TIMEOUT_S
        for name in names:
            with self._stages.waiting(name):
                while len(self._passed.get(name, ())) < num_replicas:
                    self._look(deadline)
            slowest = max(self._passed[name], key=lambda report: report.seconds)
            self._stages.done(name, slowest.seconds, slowest.detail)

    def await_ready(self, is_ready: Callable[[], bool]) -> None:
        """Raises `StartError` as `await_replicas` does."""
        deadline = self._clock() + START_TIMEOUT_S
        with self._stages.stage("ready"):
            while not is_ready():
                self._look(deadline)

    def _look(self, deadline: float) -> None:
        """Asks Serve first and hears the replicas then: they say more about their end, and before it."""
        failure = self._deploy_failure()
        for report in self._reports.pop_all():
            if report.error is not None:
                self._stages.current = report.stage
                raise StartError(report.error, report.remedy)
            self._passed.setdefault(report.stage, []).append(report)
        if failure is not None:
            raise failure
        if self._clock() > deadline:
            raise StartError(
                f"not done after {START_TIMEOUT_S:.0f} s", "see <state-dir>/run/ray and launch.log"
            )
        self._pause()


def answers(url: str) -> bool:
    """Whether a GET there is answered with 200, within two seconds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
