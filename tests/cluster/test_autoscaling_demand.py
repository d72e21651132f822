"""Demand from a gateway's counters to rates in the launcher: nothing counted twice, missed or made up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.autoscaling.capacity import ReplicaRate
from cluster.autoscaling.demand import (
    FIRST_OUTPUT_TOKENS,
    STALE_S,
    Demand,
    DemandMeter,
    DemandReader,
    GatewayDemand,
    ReplicaWork,
)
from tests.cluster.fake_replica import IDLE


def row(at: float, offered: float = 0.0, **fields: Any) -> GatewayDemand:
    defaults: dict[str, Any] = {
        "shed_tokens_total": 0.0,
        "backlog_tokens": 0,
        "answer_tokens": 100.0,
        "replicas": {},
    }
    return GatewayDemand(at=at, offered_tokens_total=offered, **{**defaults, **fields})


class TestMeter:
    def test_a_request_counts_its_input_and_what_answers_are_like(self) -> None:
        meter = DemandMeter()
        meter.arrived(100.0, 4096)
        assert meter.offered_tokens_total == 100.0 + FIRST_OUTPUT_TOKENS
        meter.arrived(10.5, 20)
        assert meter.offered_tokens_total == 130.5 + FIRST_OUTPUT_TOKENS

    def test_answers_that_ended_teach_how_long_they_are(self) -> None:
        meter = DemandMeter()
        for _ in range(400):
            meter.ended(10)
        meter.arrived(0.0, 4096)
        assert meter.offered_tokens_total == pytest.approx(10.0, rel=0.01)

    def test_what_was_shed_is_a_part_of_what_came(self) -> None:
        meter = DemandMeter()
        meter.arrived(7.0, 3)
        meter.shed(7.0, 3)
        told = meter.row(
            5.0, 9.0, 2, {"a": msgspec.structs.replace(IDLE, computed_tokens_total=50, queued_tokens=4)}
        )
        assert told == row(
            5.0,
            10.0,
            shed_tokens_total=10.0,
            backlog_tokens=9 + 2 * 128,
            answer_tokens=128.0,
            replicas={"a": ReplicaWork(50, 4, 0, 0)},
        )

    def test_tokens_that_were_computed_again_are_no_work(self) -> None:
        counters = msgspec.structs.replace(IDLE, computed_tokens_total=50, recomputed_tokens_total=20)
        assert ReplicaWork.of(counters).computed_tokens_total == 30


class TestReader:
    def test_rates_are_of_the_gateways_own_clocks(self) -> None:
        reader = DemandReader()
        assert reader.read({"g": row(100.0, 1000.0)}, 0.0) is None
        assert reader.read({"g": row(102.0, 1600.0, shed_tokens_total=50.0)}, 1.0) == Demand(
            300.0, 25.0, 0, {}
        )

    def test_a_row_that_is_read_twice_changes_nothing(self) -> None:
        reader = DemandReader()
        for now, told in enumerate((row(1.0), row(2.0, 300.0), row(2.0, 300.0))):
            demand = reader.read({"g": told}, float(now))
        assert demand == Demand(300.0, 0.0, 0, {})

    def test_gateways_add_up_and_replicas_do_not(self) -> None:
        reader = DemandReader()
        for at in (0.0, 1.0):
            works = {"r": ReplicaWork(int(at) * 500, 30, 4, 2)}
            later = {"r": ReplicaWork(int(at) * 700, 10, 6, 0)}
            demand = reader.read(
                {
                    "g": row(at, at * 100, backlog_tokens=5, replicas=works),
                    "h": row(at, at * 200, backlog_tokens=6, replicas=later),
                },
                at,
            )
        assert demand == Demand(300.0, 0.0, 5 + 6 + 30 + 2 * 100, {"r": ReplicaRate(600.0, 6, 0)})

    def test_a_replica_that_is_new_or_was_replaced_has_no_negative_past(self) -> None:
        reader = DemandReader()
        reader.read({"g": row(0.0, replicas={"a": ReplicaWork(900, 0, 0, 0)})}, 0.0)
        works = {"a": ReplicaWork(10, 0, 0, 0), "b": ReplicaWork(5000, 0, 1, 0)}
        demand = reader.read({"g": row(1.0, replicas=works)}, 1.0)
        assert demand is not None
        assert demand.replicas == {"a": ReplicaRate(0.0, 0, 0), "b": ReplicaRate(0.0, 1, 0)}

    def test_a_gateway_that_tells_nothing_new_is_gone(self) -> None:
        reader = DemandReader()
        reader.read({"g": row(0.0), "h": row(0.0)}, 0.0)
        rows = {"g": row(9.0, backlog_tokens=3), "h": row(0.0, backlog_tokens=4)}
        demand = reader.read(rows, STALE_S + 1)
        assert demand is not None
        assert demand.backlog_tokens == 3
        assert reader.gone(STALE_S + 1) == ["h"]
        assert reader.read(rows, 2 * STALE_S + 2) is None

    def test_nobody_tells_anything(self) -> None:
        assert DemandReader().read({}, 0.0) is None


@pytest.mark.parametrize(
    ("demand", "is_any"),
    [
        (Demand(0.0, 0.0, 0, {}), False),
        (Demand(0.0, 0.0, 0, {"a": ReplicaRate(0.0, 0, 0)}), False),
        (Demand(1.0, 0.0, 0, {}), True),
        (Demand(0.0, 0.0, 1, {}), True),
        (Demand(0.0, 0.0, 0, {"a": ReplicaRate(0.0, 1, 0)}), True),
    ],
)
def test_demand_is_what_comes_waits_or_runs(demand: Demand, is_any: bool) -> None:
    assert demand.is_any is is_any
