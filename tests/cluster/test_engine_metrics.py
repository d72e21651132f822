"""A replica's own metrics, read as Prometheus reads them."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from cluster import engine_metrics
from cluster.engine_metrics import EngineMetrics
from cluster.index.publisher import IndexFigures
from cluster.run_dir import RunDir
from engine.counters import EngineCounters
from tests.cluster.fake_replica import IDLE, row

# Each field its own number, so that none can stand for another.
BUSY = EngineCounters(*range(2, 2 + len(EngineCounters.__struct_fields__)))
MISSES = {
    f"prefix_miss_{reason}_tokens_total": f"prefix_cache_miss_tokens_total[{reason}]"
    for reason in ("cold", "evicted", "diverged", "below_block")
}
NAMES = MISSES | {
    "blocks_total": "blocks",
    "prefix_queries_tokens_total": "prefix_cache_queries_tokens_total",
    "prefix_hits_tokens_total": "prefix_cache_hits_tokens_total",
    "prefix_attainable_hits_tokens_total": "prefix_cache_attainable_hits_tokens_total",
}
"""Fields whose metric has another name."""


class Rig:
    """Metrics of an engine whose counters the test sets, and of its part of the prefix index."""

    def __init__(self) -> None:
        self.counters = IDLE
        self.index = IndexFigures()
        self.metrics = EngineMetrics(lambda: self.counters, lambda: self.index)

    def families(self) -> list[Metric]:
        text = generate_latest(self.metrics.registry).decode()
        return list(text_string_to_metric_families(text))

    def read(self) -> dict[str, float]:
        return {
            sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
            for family in self.families()
            for sample in family.samples
        }


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_port_is_on_loopback_among_the_targets_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def start(*arguments: Any, **options: Any) -> Any:
        opened.append(prometheus_client.start_http_server(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(engine_metrics, "start_http_server", start)
    EngineMetrics(lambda: BUSY).serve("a", RunDir(tmp_path))
    (target,) = json.loads((tmp_path / "targets.json").read_text())
    with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=5) as answer:
        assert b"\nheadrace_engine_requests_running 2.0\n" in answer.read()
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
    fields = EngineCounters.__struct_fields__
    assert {field: read[f"headrace_engine_{NAMES.get(field, field)}"] for field in fields} == {
        field: getattr(BUSY, field) for field in fields
    }
    assert read["headrace_engine_kv_cache_usage_ratio"] == BUSY.blocks_in_use / BUSY.blocks_total


def test_what_only_grows_is_a_counter_and_the_rest_are_gauges(rig: Rig) -> None:
    kinds = {family.name: family.type for family in rig.families()}
    assert {name.removeprefix("headrace_engine_") for name, kind in kinds.items() if kind == "gauge"} == {
        *("requests_running", "requests_waiting", "queued_tokens", "kv_waste_ratio", "kv_cache_usage_ratio"),
        *("blocks", "blocks_in_use", "blocks_evictable"),
        *("prefix_index_state", "prefix_index_queued_claims"),
        "headrace_replica_start_seconds",
    }
    assert {name for name, kind in kinds.items() if kind not in ("gauge", "counter")} == {
        "headrace_engine_step_seconds"
    }


def test_nothing_is_told_twice_as_a_time_of_creation(rig: Rig) -> None:
    assert "_created" not in generate_latest(rig.metrics.registry).decode()


def test_no_label_but_the_few_reasons_of_a_miss_and_the_states_of_the_index(rig: Rig) -> None:
    labels = {
        (sample.name.removeprefix("headrace_engine_"), *sample.labels)
        for family in rig.families()
        for sample in family.samples
        if sample.labels
    }
    assert labels == {
        ("prefix_cache_miss_tokens_total", "reason"),
        ("prefix_index_state", "state"),
        ("step_seconds_bucket", "le"),
    }


def test_what_each_stage_of_the_start_took_is_told(rig: Rig) -> None:
    rig.metrics = EngineMetrics(lambda: IDLE, start_seconds={"import": 9.5, "KV pool": 0.25})
    told = {name: value for name, value in rig.read().items() if "start_seconds" in name}
    assert told == {
        "headrace_replica_start_seconds[import]": 9.5,
        "headrace_replica_start_seconds[KV pool]": 0.25,
    }


def test_steps_and_their_tokens_are_counted(rig: Rig) -> None:
    rig.metrics.observe_step([row("r", 0, 1, 2), row("s", 0, 3)], 0.03, 0.02)
    rig.metrics.observe_step([], 6.0, 5.5)
    read = rig.read()
    assert read["headrace_engine_generation_tokens_total"] == 3
    assert read["headrace_engine_step_seconds_count"] == 2
    assert read["headrace_engine_step_seconds_sum"] == pytest.approx(6.03)
    assert read["headrace_engine_step_seconds_bucket[0.025]"] == 0
    assert read["headrace_engine_step_seconds_bucket[0.05]"] == 1
    assert read["headrace_engine_step_seconds_bucket[5.0]"] == 1
    assert read["headrace_engine_executor_seconds_total"] == pytest.approx(5.52)


def test_broken_invariants_are_counted_from_zero(rig: Rig) -> None:
    assert rig.read()["headrace_engine_integrity_errors_total"] == 0
    rig.metrics.integrity_errors.inc()
    assert rig.read()["headrace_engine_integrity_errors_total"] == 1


@pytest.mark.parametrize("state", ["exact", "degraded", "off"])
def test_the_index_is_in_one_state(rig: Rig, state: Any) -> None:
    rig.index = IndexFigures(state)
    read = rig.read()
    states = {one: read[f"headrace_engine_prefix_index_state[{one}]"] for one in ("exact", "degraded", "off")}
    assert states == {"exact": 0, "degraded": 0, "off": 0} | {state: 1}


def test_what_is_told_to_the_index_is_counted(rig: Rig) -> None:
    rig.index = IndexFigures(queued=2, published_total=3, repaired_total=4, failures_total=5)
    read = rig.read()
    names = ("queued_claims", "published_claims_total", "repaired_claims_total", "failures_total")
    assert [read[f"headrace_engine_prefix_index_{name}"] for name in names] == [2, 3, 4, 5]


def test_two_replicas_of_one_process_have_their_own_numbers(rig: Rig) -> None:
    Rig().metrics.integrity_errors.inc()
    assert rig.read()["headrace_engine_integrity_errors_total"] == 0
