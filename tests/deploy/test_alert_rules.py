"""The alert rules speak of metrics that exist, each is seen firing and silent, and its tests can fail.

`make check-rules` runs the rules' own tests (`deploy/prometheus/tests`); CI has promtool.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from cluster.autoscaling.metrics import ScalingCollector
from cluster.engine_metrics import EngineMetrics
from cluster.record_metrics import RecordMetrics
from cluster.settings import ServeSettings
from cluster.telemetry import BUCKETS_S, Telemetry
from tests.cluster.fake_replica import IDLE
from tests.cluster.scaling_world import make_status

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
RULES_FILE = FOLDER / "headrace.rules.yml"
RULES = [rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
SUITES = [yaml.safe_load(file.read_text()) for file in FOLDER.glob("tests/*_test.yml")]
TESTS = [test for suite in SUITES for test in suite["tests"]]
OF_PROMETHEUS = {"up"}

PROMTOOL = shutil.which(
    "promtool", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
)
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: `make check-rules` says where to get it"
)


def samples_of(registry: Collector | CollectorRegistry) -> Iterator[str]:
    """Names of the series that the registry's metrics have, labels or not."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    for family in registry.collect():
        yield from (family.name + suffix for suffix in suffixes[family.type])


EXPORTED = {
    *samples_of(Telemetry(lambda: {"r": IDLE}).registry),
    *samples_of(EngineMetrics(lambda: IDLE).registry),
    *samples_of(RecordMetrics(lambda: defaultdict(float))),
    *samples_of(ScalingCollector(make_status)),
}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:headrace[\w:]+|up(?=[{ ]))", text))


def test_rules_speak_of_metrics_that_are_exported() -> None:
    named = set().union(*(names_in(rule["expr"]) for rule in RULES))
    assert len(named) > 10
    assert named <= EXPORTED | RECORDED | OF_PROMETHEUS


def test_every_recorded_series_is_used() -> None:
    assert set().union(*(names_in(alert["expr"]) for alert in ALERTS.values())) >= RECORDED


def test_descriptions_name_metrics_that_are_exported() -> None:
    """A name may end in a choice of parts: `headrace_request_{queue,prefill}_time_seconds`."""
    for alert in ALERTS.values():
        text = alert["annotations"].get("description", "")
        for before, parts, after in re.findall(r"(headrace_\w*)(?:\{([\w,]+)\}(\w*))?", text):
            for name in (f"{before}{part}{after}" for part in parts.split(",")):
                assert {name, f"{name}_bucket"} & EXPORTED, name


def test_the_rules_are_tested_on_series_that_are_exported() -> None:
    series = [one["series"] for test in TESTS for one in test["input_series"]]
    assert {name.partition("{")[0] for name in series} <= EXPORTED | OF_PROMETHEUS
    bounds = {bound for name in series for bound in re.findall(r'le="([^"]+)"', name)}
    assert bounds <= {*map(str, BUCKETS_S), "+Inf"}


def test_every_alert_is_seen_firing_and_silent() -> None:
    seen = defaultdict(set)
    for test in TESTS:
        for case in test["alert_rule_test"]:
            seen[case["alertname"]].add("fires" if case["exp_alerts"] else "silent")
    assert {name: seen[name] for name in ALERTS} == {name: {"fires", "silent"} for name in ALERTS}


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    assert {alert["labels"]["severity"] for alert in ALERTS.values()} == {"critical", "warning"}
    assert all(alert["annotations"]["summary"] for alert in ALERTS.values())


def test_no_alert_of_ours_is_on_an_average() -> None:
    assert not any(re.search(r"_(sum|count)\b|\bavg", rule["expr"]) for rule in RULES)


def test_prometheus_finds_the_targets_of_a_cluster_with_the_default_state_dir() -> None:
    config: Any = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    (discovery,) = scrape["file_sd_configs"]
    state_dir = ServeSettings().state_dir
    targets = (FOLDER.parents[1] / state_dir / "run" / "targets.json").resolve()
    assert [(FOLDER / name).resolve() for name in discovery["files"]] == [targets]
    assert config["rule_files"] == [RULES_FILE.name]


class Fault(NamedTuple):
    name: str
    found_by: str
    """Beginning of the test's name."""
    right: str
    wrong: str


FAULTS = (
    Fault("median for p99", "1.5 % wait", "quantile(0.99", "quantile(0.5"),
    Fault("gateways one by one", "1.5 % wait", "by (le) (rate(", "by (le, gateway) (rate("),
    Fault("limit too high", "1.5 % wait", ":p99_5m > 10", ":p99_5m > 30"),
    Fault("`for` that one request outlasts", "a single slow", "for: 5m", "for: 1m"),
    Fault("median not compared", "where everybody", "< 1.5 * ", "< 150 * "),
    Fault("tail against no past", "a calm busy hour", "> 3 * ", "> 0 * "),
    Fault(
        "blind for an hour after a start",
        "2 % take 2 to 5 s, from 20 minutes",
        "quantile_over_time(0.5, headrace:time_to_first_token_seconds:p99_5m[1d])",
        "(headrace:time_to_first_token_seconds:p99_5m offset 1h)",
    ),
    Fault("blind after quiet hours", "after two busy", " >= 0", ""),
    Fault("an hour of trouble is usual", "after two busy", "[1d]", "[1h]"),
    Fault(
        "short preemption alerts",
        "a calm busy hour",
        "preempted_time_seconds:p99_5m > 1",
        "preempted_time_seconds:p99_5m > 0.1",
    ),
    Fault("pool never full", "the KV pool", "usage_ratio > 0.9", "usage_ratio > 1"),
    Fault("busy taken for short of memory", "the KV pool", " and headrace_engine_requests_waiting > 0", ""),
    Fault(
        "broken invariant forgotten",
        "a broken invariant",
        "expr: headrace_engine_integrity_errors_total",
        "expr: increase(headrace_engine_integrity_errors_total[10m])",
    ),
    Fault(
        "failure alerts for ever",
        "one answer",
        "increase(headrace_engine_failed_requests_total[10m])",
        "headrace_engine_failed_requests_total",
    ),
    Fault(
        "a restart hides it",
        "a disk that still takes nothing",
        "increase(headrace_spool_failed_writes_total[10m])",
        "delta(headrace_spool_failed_writes_total[10m])",
    ),
    Fault("idle taken for stalled", "one replica stands", "requests_waiting > 0", "requests_waiting >= 0"),
    Fault("only a Redis that is away", "the prefix index", '{state="exact"}) == 0', '{state="off"}) == 1'),
    Fault("every state for itself", "the prefix index", '_state{state="exact"}) ==', "_state) =="),
    Fault("every process of the machine", "a process that", 'up{process=~"gateway|replica"}', "up"),
    Fault(
        "half may be missing", "gateways are scraped", 'or (absent(up{process="replica"}) unless', "unless ("
    ),
    Fault("none on purpose alerts", "no replica on purpose", " unless on () sum(headrace_replicas) == 0", ""),
    Fault("help that comes alerts", "more is asked", 'state=~"provisioning|starting"', 'state="leaving"'),
    Fault("gateways add up", "more is asked", "max(headrace_capacity", "sum(headrace_capacity"),
    Fault("a tenant's own cap alerts", "batch and", ', code!="queue_full"', ""),
    Fault("batch alerts", "batch and", '{class="interactive", code!=', "{code!="),
    Fault("a little longer alerts", "waits that are", 'sign="longer", le="5.0"', 'sign="shorter", le="5.0"'),
)


@needs_promtool
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_in_the_rules_is_found(fault: Fault, tmp_path: Path) -> None:
    rules = RULES_FILE.read_text()
    assert fault.right in rules
    assert run_test(fault.found_by, rules, tmp_path).returncode == 0
    found = run_test(fault.found_by, rules.replace(fault.right, fault.wrong), tmp_path)
    assert found.returncode == 1
    assert "FAILED" in found.stdout + found.stderr


def run_test(name: str, rules: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """That one test, on these rules."""
    ((suite, test),) = ((s, test) for s in SUITES for test in s["tests"] if test["name"].startswith(name))
    files = {"ours.yml": rules, "average.yml": (FOLDER / "tests" / "average.rules.yml").read_text()}
    for file, text in files.items():
        (folder / file).write_text(text)
    (folder / "suite.yml").write_text(yaml.safe_dump({**suite, "rule_files": [*files], "tests": [test]}))
    return subprocess.run(
        [str(PROMTOOL), "test", "rules", folder / "suite.yml"], capture_output=True, text=True
    )
