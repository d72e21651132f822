"""The bounds of the routing comparison: each found when it is missed, none when all are kept."""

import pytest

from loadtest.routing_bench.verdict import judge, row_of
from loadtest.slo import Slo
from loadtest.summary import summarize
from tests.loadtest.test_summary import a_record, a_run

OURS_EVEN = {"case": "even", "policy": "token-load", "errors": 0, "hits_of_ideal": 0.9, "hit_rate": 0.7}
OURS_HOT = {
    "case": "hot", "policy": "token-load", "errors": 0, "hit_rate": 0.64, "in_flight_max_over_mean": 1.5,
}  # fmt: skip
AFFINITY_HOT = OURS_HOT | {"policy": "affinity", "hit_rate": 0.8, "in_flight_max_over_mean": 3.4}
ALL = {"even": OURS_EVEN, "hot": OURS_HOT, "affinity": AFFINITY_HOT}


def test_what_keeps_every_bound_has_no_failures() -> None:
    assert judge(list(ALL.values())) == []


@pytest.mark.parametrize(
    ("name", "change", "failure"),
    [
        ("even", {"hits_of_ideal": 0.899}, "even: hits of the ideal 89.9%, at least 90% is asked"),
        ("even", {"hits_of_ideal": None}, "even: hits of the ideal unknown, at least 90% is asked"),
        ("hot", {"in_flight_max_over_mean": 1.51}, "hot: max/mean in flight 1.51, at most 1.5 is allowed"),
        ("hot", {"in_flight_max_over_mean": None}, "hot: max/mean in flight None, at most 1.5 is allowed"),
        ("hot", {"hit_rate": 0.63}, "hot: hits of pure affinity's 78.8%, at least 80% is asked"),
        (
            "affinity",
            {"errors": 2, "statuses": {"cut off": 2, "ok": 7}},
            "hot, affinity: 2 requests failed: 2 × cut off",
        ),
    ],
)
def test_a_bound_that_is_missed_is_named(name: str, change: dict, failure: str) -> None:
    rows = [row | change if key == name else row for key, row in ALL.items()]
    assert judge(rows) == [failure]


def test_bounds_are_for_our_policy_alone_and_only_where_it_ran() -> None:
    others = [OURS_EVEN | {"policy": "round-robin", "hits_of_ideal": 0.1}, AFFINITY_HOT]
    assert judge(others) == []
    assert judge([OURS_HOT]) == []


def test_a_row_holds_what_the_load_reported() -> None:
    summary = summarize(a_run(a_record(replica="a"), offered_s=1.0), Slo(), ideal_hit_rate=0.5)
    assert row_of("even", "affinity", summary) == {
        "case": "even", "policy": "affinity", "requests": 1, "rejected": 0, "errors": 0,
        "hit_rate": 0.25, "hits_of_ideal": 0.5, "ttft_p50_ms": 500.0, "ttft_p99_ms": 500.0,
        "in_flight_max_over_mean": 1.0, "achieved_rps": 0.1, "send_lag_p99_ms": 0.0,
        "statuses": {"ok": 1},
    }  # fmt: skip
