"""The command line of `headrace scenario`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace import main
from loadtest import scenario_command
from loadtest.fleet.curve import Curve
from loadtest.scenarios.catalogue import NAMES
from loadtest.scenarios.scenario import Bound, Scenario, ScenarioResult

OUTCOME = ScenarioResult(
    {"p99_ms": 12.5, "slo": "ttft_ms=1"}, {"503 overloaded": 3}, {"good": Curve([0, 1], [2, 3])}
)
SCENARIO = Scenario(
    "Something happens.",
    (Bound("p99_ms", "≤", 20),),
    run=lambda seed, on_time: OUTCOME,
    baseline=lambda seed, on_time: replace(OUTCOME, figures={"p99_ms": 99.0 + seed, "slo": "ttft_ms=1"}),
    axes=("x", "y"),
)


def call(monkeypatch: pytest.MonkeyPatch, scenario: Scenario, *arguments: str) -> Result:
    monkeypatch.setattr(scenario_command, "find", lambda name: scenario)
    return CliRunner().invoke(main, ["scenario", "free-burst", *arguments])


def test_list_names_every_scenario() -> None:
    result = CliRunner().invoke(main, ["scenario", "list"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == list(NAMES)


def test_what_there_is_not_is_refused_with_the_names_of_what_there_is() -> None:
    result = CliRunner().invoke(main, ["scenario", "picnic"])
    assert result.exit_code == 2
    assert "launch-day-mild" in result.output


def test_the_last_line_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, SCENARIO, "--json", "--baseline", "--seed", "1")
    assert result.exit_code == 0
    assert json.loads(result.output.splitlines()[-1]) == {
        "held": True,
        "missed": [],
        "figures": {"p99_ms": 12.5, "slo": "ttft_ms=1"},
        "rejected": {"503 overloaded": 3},
        "baseline": {"p99_ms": 100.0, "slo": "ttft_ms=1", "rejected": {"503 overloaded": 3}},
    }


@pytest.mark.parametrize("limit", [10.0, None])
def test_a_bound_that_is_missed_is_said_and_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, limit: float | None
) -> None:
    outcome = replace(OUTCOME, figures={"p99_ms": None if limit is None else 12.5})
    scenario = replace(SCENARIO, bounds=(Bound("p99_ms", "≤", 10),), run=lambda seed, on_time: outcome)
    result = call(monkeypatch, scenario, "--json")
    assert result.exit_code == 1
    assert "missed: p99_ms ≤ 10" in result.output
    assert json.loads(result.output.splitlines()[-1])["held"] is False


def test_people_see_rejections_beside_the_figures_and_each_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    output = call(monkeypatch, SCENARIO).output
    assert "Something happens." in output
    assert ["p99", "ms", "12.5", "≤", "20"] in [line.split() for line in output.splitlines()]
    assert ["rejected", "3"] in [line.split() for line in output.splitlines()]


@pytest.mark.parametrize("has_matplotlib", [True, False])
def test_a_picture_that_cannot_be_drawn_is_told_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_matplotlib: bool
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if has_matplotlib else None)
    never = replace(SCENARIO, run=lambda seed, on_time: pytest.fail("it ran"))
    place = tmp_path / "nowhere" if has_matplotlib else tmp_path
    result = call(monkeypatch, never, "--plot", str(place / "x.png"))
    assert result.exit_code == 2
    assert "--plot" in result.output
    assert ("is no folder" if has_matplotlib else "[plot]") in result.output
