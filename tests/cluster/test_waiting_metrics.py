"""The numbers of waiting: there from the start, and exact."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from cluster.telemetry import Telemetry
from cluster.waiting_metrics import CODES, GAUGES, SIGNS
from tests.cluster.waiting_rig import BATCH, PAID


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(dict)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"headrace_{name}", labels)


def by_class(share_class: str) -> dict[str, str]:
    return {"class": share_class}


@pytest.mark.parametrize("service_class", ["interactive", "batch"])
def test_series_are_there_with_zero_before_anybody_has_waited(
    telemetry: Telemetry, service_class: str
) -> None:
    registry, labels = telemetry.registry, by_class(service_class)
    assert value(registry, "gateway_queue_time_seconds_count", **labels) == 0
    for code in CODES:
        assert value(registry, "turned_away_requests_total", code=code, **labels) == 0
    for sign in SIGNS:
        assert value(registry, "wait_error_seconds_count", sign=sign) == 0
    assert {name: value(registry, name) for name in GAUGES} == dict.fromkeys(GAUGES, 0)


def test_turns_and_refusals_are_counted_by_class(telemetry: Telemetry) -> None:
    telemetry.waiting.observe_turn(PAID, 0.75)
    telemetry.waiting.observe_turn(BATCH, 40.0)
    telemetry.waiting.count_turned_away(BATCH, "overloaded")
    registry = telemetry.registry
    assert value(registry, "gateway_queue_time_seconds_sum", **by_class("interactive")) == 0.75
    assert value(registry, "gateway_queue_time_seconds_sum", **by_class("batch")) == 40.0
    turned_away = {
        name: value(registry, "turned_away_requests_total", code="overloaded", **by_class(name))
        for name in ("interactive", "batch")
    }
    assert turned_away == {"interactive": 0, "batch": 1}


def test_how_far_a_wait_was_from_what_was_foreseen_is_told_by_its_sign(telemetry: Telemetry) -> None:
    for predicted_s, actual_s in ((1.0, 3.5), (2.0, 1.0), (0.0, 0.0)):
        telemetry.waiting.observe_wait(predicted_s, actual_s)
    sums = {sign: value(telemetry.registry, "wait_error_seconds_sum", sign=sign) for sign in SIGNS}
    assert sums == {"longer": 2.5, "shorter": 1.0}


def test_what_waits_is_told_as_it_is_now(telemetry: Telemetry) -> None:
    now = dict.fromkeys(GAUGES, 0.0)
    telemetry.waiting.gauges = lambda: now
    now["gateway_requests_waiting"] = 3
    now["brownout"] = True
    assert value(telemetry.registry, "gateway_requests_waiting") == 3
    assert value(telemetry.registry, "brownout") == 1
    assert value(telemetry.registry, "promised_returns") == 0
