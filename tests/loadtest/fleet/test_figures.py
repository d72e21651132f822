"""Figures of a fleet's run: exact for calls that are written down here."""

from __future__ import annotations

import pytest

from loadtest.fleet.fairness import jain, weighted_jain
from loadtest.fleet.figures import good_share, honesty, rejected, ttft_curve, ttft_p99_ms
from loadtest.fleet.pool import Served
from loadtest.fleet.run import CallRecord, FleetRun
from loadtest.fleet.windows import windows
from loadtest.record import RequestRecord
from loadtest.slo import Slo
from tenants.queued import Share
from tests.loadtest.fleet.small import a_config

SLO = Slo(ttft_ms=1000.0)


def a_call(
    number: int = 0,
    *,
    sent: float = 0.0,
    first: float = 0.5,
    status: str = "ok",
    tries: int = 0,
    **fields: bool,
) -> CallRecord:
    """A prompt of 90 tokens and ten tokens, one second apart."""
    times = tuple(sent + first + index for index in range(10)) if status == "ok" else ()
    record = RequestRecord(
        tenant="t",
        intended_at=sent,
        sent_at=sent,
        finished_at=times[-1] if times else sent,
        status=status,
        token_times=times,
        prompt_tokens=90,
        output_tokens=len(times),
        reason="" if times else "overloaded",
    )
    return CallRecord(number, tries, fields.get("was_told", False), Share("t", 1, "interactive"), 10, record)


def test_an_ask_is_good_if_it_is_answered_in_time_since_its_first_try() -> None:
    calls = [
        a_call(0),
        a_call(1, first=1.5),
        a_call(2, status="503"),
        a_call(2, sent=0.3, tries=1),
        a_call(3, status="503"),
        a_call(3, sent=0.9, tries=1),
    ]
    assert good_share(calls, SLO) == 0.5


def test_rejections_are_counted_by_status_and_reason_beside_the_latencies_of_the_rest() -> None:
    calls = [a_call(0), a_call(1, status="503"), a_call(2, status="503"), a_call(3, status="429")]
    assert rejected(calls) == {"429 overloaded": 1, "503 overloaded": 2}
    assert ttft_p99_ms(calls) == 500.0
    assert set(ttft_curve(calls).y) == {500.0}


def test_a_refusal_was_honest_if_who_came_back_as_told_got_in() -> None:
    assert honesty([a_call(0, tries=1)]) is None
    told = [a_call(0, was_told=True), a_call(1, was_told=True, status="503"), a_call(2, status="503")]
    assert honesty(told) == 0.5


def test_windows_say_what_was_offered_given_and_possible() -> None:
    served = {"a": Served(0.0, None), "b": Served(10.0, 15.0)}
    calls = [a_call(0, sent=4.0), a_call(1, sent=19.5, first=5.0)]
    run = FleetRun(a_config(), calls, [], served, 30.0, 0)
    rows = windows(run, SLO, 50.0)
    assert [row.begin_s for row in rows] == [0.0, 10.0, 20.0]
    assert [row.offered for row in rows] == [10.0, 10.0, 0.0]
    assert [row.good for row in rows] == pytest.approx([6.0, 4.0, 0.0]), "the second one comes too late"
    assert [row.capacity for row in rows] == [50.0, 75.0, 50.0]
    later = windows(run, SLO, 50.0, answer_s=2.0)
    assert [row.offered for row in later] == [10.0, 0.0, 10.0]


def test_a_slow_start_is_no_capacity_yet() -> None:
    run = FleetRun(a_config(ramp_s=10.0), [], [], {"a": Served(0.0, None)}, 20.0, 0)
    assert [row.capacity for row in windows(run, SLO, 100.0)] == pytest.approx([56.25, 100.0])


def test_jain_s_index_is_one_for_what_is_due_and_less_for_anything_else() -> None:
    assert jain([2.0, 2.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    demands, weights = {"a": 10.0, "b": 90.0, "c": 90.0}, {"a": 4, "b": 1, "c": 2}
    assert weighted_jain({"a": 10.0, "b": 10.0, "c": 20.0}, demands, weights) == 1.0
    assert weighted_jain({"a": 10.0, "b": 25.0, "c": 5.0}, demands, weights) < 0.8
