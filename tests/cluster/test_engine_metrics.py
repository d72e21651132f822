"""A replica's own metrics, read as Prometheus reads them."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from cluster import engine_metrics
from cluster.engine_metrics import EngineMetrics
from cluster.run_dir import RunDir
from engine.counters import EngineCounters
from tests.cluster.fake_replica import IDLE, row

BUSY = EngineCounters(3, 2, 700, 100, 40, 10, 0.25, 6, 1000, 250)


class Rig:
    """Metrics whose port the test stands in for, with counters as the test sets them."""

    def __init__(self, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_metrics, "start_http_server", self._open)
        self.metrics = EngineMetrics()
        self.counters = IDLE
        self.metrics.serve("a", run_dir, lambda: self.counters)

    def _open(self, port: int, *, addr: str, registry: CollectorRegistry) -> tuple[Any, None]:
        self._registry = registry
        return SimpleNamespace(server_address=(addr, 9009)), None

    def families(self) -> list[Metric]:
        text = generate_latest(self._registry).decode()
        return [
            family for family in text_string_to_metric_families(text) if not family.name.endswith("_created")
        ]

    def read(self) -> dict[str, float]:
        return {
            sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
            for family in self.families()
            for sample in family.samples
        }


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(RunDir(tmp_path), monkeypatch)


def test_the_port_is_on_loopback_among_the_targets_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def start(*arguments: Any, **options: Any) -> Any:
        opened.append(prometheus_client.start_http_server(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(engine_metrics, "start_http_server", start)
    EngineMetrics().serve("a", RunDir(tmp_path), lambda: BUSY)
    (target,) = json.loads((tmp_path / "targets.json").read_text())
    with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=5) as answer:
        assert b"\nheadrace_engine_requests_running 3.0\n" in answer.read()
    assert target["labels"] == {"process": "replica", "replica": "a", "pid": str(os.getpid())}
    ((server, thread),) = opened
    assert server.server_address[0] == "127.0.0.1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_every_counter_of_the_link_is_there_as_it_is_now(rig: Rig) -> None:
    assert rig.read()["headrace_engine_requests_running"] == 0
    rig.counters = BUSY
    read = rig.read()
    assert {field: read[f"headrace_engine_{field}"] for field in EngineCounters.__struct_fields__} == {
        field: getattr(BUSY, field) for field in EngineCounters.__struct_fields__
    }


def test_what_only_grows_is_a_counter_and_the_rest_are_gauges(rig: Rig) -> None:
    kinds = {family.name: family.type for family in rig.families()}
    totals = {f"{kind}_tokens" for kind in ("prefix_queries", "prefix_hits")}
    totals |= {"preemptions", "kv_empty_slots", "kv_owned_slots"}
    counters = {*totals, "generation_tokens", "integrity_errors"}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        f"headrace_engine_{name}" for name in counters
    }
    assert {kind for name, kind in kinds.items() if kind != "counter"} == {"gauge", "histogram"}


def test_steps_and_their_tokens_are_counted(rig: Rig) -> None:
    rig.metrics.observe_step([row("r", 0, 1, 2), row("s", 0, 3)], 0.03)
    rig.metrics.observe_step([], 6.0)
    read = rig.read()
    assert read["headrace_engine_generation_tokens_total"] == 3
    assert read["headrace_engine_step_seconds_count"] == 2
    assert read["headrace_engine_step_seconds_sum"] == pytest.approx(6.03)
    assert read["headrace_engine_step_seconds_bucket[0.025]"] == 0
    assert read["headrace_engine_step_seconds_bucket[0.05]"] == 1
    assert read["headrace_engine_step_seconds_bucket[5.0]"] == 1


def test_a_broken_invariant_is_counted(rig: Rig) -> None:
    rig.metrics.integrity_errors.inc()
    assert rig.read()["headrace_engine_integrity_errors_total"] == 1


def test_two_replicas_of_one_process_have_their_own_numbers(rig: Rig) -> None:
    EngineMetrics().integrity_errors.inc()
    assert rig.read()["headrace_engine_integrity_errors_total"] == 0
