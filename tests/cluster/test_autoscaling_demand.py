"""Demand from a gateway's counters to rates in the launcher: nothing counted twice, missed or made up."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from cluster.autoscaling.turned_away import TurnedAway
from tests.cluster.fake_replica import IDLE
from tests.cluster.waiting_rig import FREE, an_arrival


def row(at: float, offered: float = 0.0, **fields: Any) -> GatewayDemand:
    defaults: dict[str, Any] = {
        "shed_tokens_total": 0.0,
        "backlog_tokens": 0,
        "answer_tokens": 100.0,
        "replicas": {},
    }
    return GatewayDemand(at=at, offered_tokens_total=offered, **{**defaults, **fields})


def meter_of_answers(num_tokens: int) -> DemandMeter:
    meter = DemandMeter()
    for _ in range(2000):
        meter.ended(num_tokens)
    return meter


class TestMeter:
    def test_a_request_counts_its_input_and_what_answers_are_like(self) -> None:
        meter = DemandMeter()
        meter.arrived(an_arrival(tokens=100), 4096, 0.0)
        assert meter.offered_tokens_total == 100.0 + FIRST_OUTPUT_TOKENS
        meter.arrived(an_arrival(tokens=10, cached_tokens=5), 20, 0.0)
        assert meter.offered_tokens_total == 130.5 + FIRST_OUTPUT_TOKENS

    def test_answers_that_ended_teach_how_long_they_are(self) -> None:
        meter = meter_of_answers(10)
        meter.arrived(an_arrival(tokens=0), 4096, 0.0)
        assert meter.offered_tokens_total == pytest.approx(10.0)

    def test_what_was_shed_is_a_part_of_what_came_whatever_was_learned_meanwhile(self) -> None:
        meter = DemandMeter()
        visit = meter.arrived(an_arrival(tokens=7), 4096, 0.0)
        meter.ended(10)
        meter.turned_away(visit, 5.0, None, is_shed=True)
        told = meter.row(
            5.0, 9.0, 2, {"a": msgspec.structs.replace(IDLE, computed_tokens_total=50, queued_tokens=4)}
        )
        answer = FIRST_OUTPUT_TOKENS + 0.02 * (10 - FIRST_OUTPUT_TOKENS)
        assert told == row(
            5.0,
            7 + FIRST_OUTPUT_TOKENS,
            shed_tokens_total=7 + FIRST_OUTPUT_TOKENS,
            backlog_tokens=9 + 2 * answer,
            answer_tokens=answer,
            replicas={"a": ReplicaWork(50, 4, 0, 0)},
        )

    def test_tokens_that_were_computed_again_are_no_work(self) -> None:
        counters = msgspec.structs.replace(IDLE, computed_tokens_total=50, recomputed_tokens_total=20)
        assert ReplicaWork.of(counters).computed_tokens_total == 30


class TestReturns:
    """Of a request of 40 tokens, answered with 8 at most, that is turned away at 0.0 and told to come."""

    def meter(self, retry_after_s: float | None = 30.0, *, is_shed: bool = True) -> DemandMeter:
        meter = DemandMeter()
        self.turn_away(meter, 0.0, retry_after_s, is_shed=is_shed)
        return meter

    def turn_away(
        self, meter: DemandMeter, at: float, after_s: float | None, *, is_shed: bool = True, **fields: Any
    ) -> None:
        visit = meter.arrived(an_arrival(tokens=40, **fields), 8, at)
        meter.turned_away(visit, at, after_s, is_shed=is_shed)

    def totals(self, meter: DemandMeter, at: float, **fields: Any) -> tuple[float, float]:
        """Once it comes at `at`."""
        meter.arrived(an_arrival(tokens=40, **fields), 8, at)
        return meter.offered_tokens_total, meter.shed_tokens_total

    def test_are_counted_once(self) -> None:
        assert self.totals(self.meter(), 30.0, is_return=True) == (48, 48)

    def test_are_known_by_their_prompt_when_they_are_due_too(self) -> None:
        assert self.totals(self.meter(), 29.5) == (48, 48)
        assert self.totals(self.meter(), 39.0) == (48, 48)

    def test_before_that_the_same_prompt_is_another_one(self) -> None:
        assert self.totals(self.meter(), 29.0) == (96, 48)

    def test_that_come_before_their_time_and_say_so_are_known(self) -> None:
        assert self.totals(self.meter(), 0.5, is_return=True) == (48, 48)

    def test_that_come_too_late_are_new(self) -> None:
        assert self.totals(self.meter(), 40.0, is_return=True) == (96, 48)

    def test_of_one_that_was_told_no_time_are_known_for_a_moment(self) -> None:
        assert self.totals(self.meter(None), 8.0, is_return=True) == (48, 48)
        assert self.totals(self.meter(None), 10.0, is_return=True) == (96, 48)

    def test_of_one_whose_tenant_has_enough_waiting_are_counted_once_too(self) -> None:
        assert self.totals(self.meter(is_shed=False), 30.0, is_return=True) == (48, 0)

    def test_that_are_turned_away_again_and_again_count_for_as_long_as_is_remembered(self) -> None:
        meter = self.meter()
        for at in (30.0, 60.0, 90.0, 119.0):
            self.turn_away(meter, at, 30.0, is_return=True)
        assert (meter.offered_tokens_total, meter.shed_tokens_total) == (48, 48)
        assert self.totals(meter, 120.0, is_return=True) == (96, 48)

    def test_that_were_let_in_are_forgotten(self) -> None:
        meter = self.meter()
        meter.arrived(an_arrival(tokens=40, is_return=True), 8, 30.0)
        assert self.totals(meter, 31.0) == (96, 48)

    def test_of_as_many_as_ask_the_same_are_as_many(self) -> None:
        meter = self.meter()
        self.turn_away(meter, 1.0, 30.0)
        assert [self.totals(meter, 31.0)[0] for _ in range(3)] == [96, 96, 144]

    def test_of_one_that_another_gateway_turned_away_are_known_where_its_tenant_is(self) -> None:
        meter = self.meter()
        assert self.totals(meter, 5.0, entry_id="elsewhere", is_return=True) == (48, 48)
        assert self.totals(meter, 5.0, entry_id="elsewhere", share=FREE, is_return=True) == (96, 48)
        assert self.totals(meter, 40.0, entry_id="elsewhere", is_return=True) == (144, 48)

    def test_of_more_than_are_kept_count_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cluster.autoscaling.turned_away.MAX_KEPT", 1)
        meter = self.meter()
        self.turn_away(meter, 0.0, 30.0, entry_id="second")
        assert self.totals(meter, 30.0, entry_id="second") == (144, 96)
        assert self.totals(meter, 30.0) == (144, 96)


def test_nobody_who_came_back_or_gave_up_is_kept() -> None:
    outside = TurnedAway()
    for number, claim in enumerate((b"same", b"same", b"same", b"other")):
        outside.add(("acme", claim), due_s=10.0 + 50 * number, counted_s=0.0)
    assert outside.take_back(("acme", b"same"), 10.0, says_so=False) == 0.0
    assert outside.take_back(("acme", b"new"), 120.0, says_so=False) is None
    assert not any(vars(outside).values())


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.floats(1.0, 29.0), max_size=4)), min_size=1, max_size=12
    )
)
def test_however_often_each_client_comes_and_whenever_it_is_told_to_all_count_once(
    clients: list[tuple[int, list[float]]],
) -> None:
    """Each asks for one of six things; for two minutes all who were told to come do, and say so."""
    meter, visits = DemandMeter(), []
    for number, (_, pauses) in enumerate(clients):
        ats = [0.0, *accumulate(pauses)]
        visits += [(at, number, tries, pauses[tries : tries + 1]) for tries, at in enumerate(ats)]
    for at, number, tries, pause in sorted(visits):
        arrival = an_arrival(f"ask {clients[number][0]}", tokens=40, is_return=tries > 0)
        visit = meter.arrived(arrival, 8, at)
        if pause:
            meter.turned_away(visit, at, pause[0], is_shed=True)
    assert meter.offered_tokens_total == 48 * len(clients)
    assert meter.shed_tokens_total == 48 * sum(bool(pauses) for _, pauses in clients)


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
