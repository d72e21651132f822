"""For all tests: one Hypothesis profile, and what each room's tests cost beside what they may cost."""

from __future__ import annotations

import gc
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

# Hypothesis's own profile for shared machines: the same examples in every run, and nothing is timed.
settings.load_profile("ci")

CAPS_S = {"engine": 150, "tenants": 50, "cluster + e2e": 210, "fairness": 60, "kernels": 70, "rest": 60}
_ROOMS = {
    "engine": "engine",
    "tenants": "tenants",
    "cluster": "cluster + e2e",
    "e2e": "cluster + e2e",
    "kernels": "kernels",
}
_FAIRNESS = (
    "test_fair",
    "test_scenario",
    "test_wait",
    "test_gateway_queue",
    "test_admission_windows",
    "test_replica_rates",
    "test_autoscaling",
)
"""How files of any folder begin that are about who goes next, and how many replicas there are."""

_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_collection_finish() -> None:
    """What is imported by now stays: not to be looked through again each time that garbage is collected."""
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = Path(report.nodeid.partition("::")[0])
    is_fairness = path.name.startswith(_FAIRNESS) and "e2e" not in path.parts
    _seconds["fairness" if is_fairness else _ROOMS.get(path.parts[1], "rest")] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds by room")
    for room, cap in CAPS_S.items():
        if room in _seconds:
            note = "" if _seconds[room] <= cap else "   over its cap"
            terminalreporter.line(f"{room:<14}{_seconds[room]:7.1f} of {cap}{note}")
