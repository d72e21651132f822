"""A replica's window among gateways: max-min fair over the tenants that ask for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.window_shares import LOWER_CLASS_SHARE, FlowDemand, window_shares
from tenants.batch_floor import INTERACTIVE_PER_BATCH

WINDOW = 1000
IDLE: tuple[FlowDemand, ...] = ()

demands = st.dictionaries(
    st.sampled_from("wxyz"),
    st.lists(
        st.builds(
            FlowDemand,
            st.sampled_from(["", "a", "b", "c"]),
            st.integers(0, 3000),
            st.integers(1, 4),
            st.integers(0, 1),
        ),
        max_size=4,
        unique_by=lambda one: (one.tenant_id, one.priority),
    ),
    min_size=1,
)


def shares(**demands: tuple[FlowDemand, ...]) -> dict[str, float]:
    return {key: round(share, 6) for key, share in window_shares(WINDOW, demands).items()}


def test_where_nobody_waits_all_have_the_same() -> None:
    assert shares(x=IDLE, y=IDLE) == {"x": 0.5, "y": 0.5}


def test_who_waits_gets_it_from_who_does_not() -> None:
    assert shares(x=(FlowDemand("a", 5000),), y=IDLE) == {"x": 1.0, "y": 0.0}


def test_what_a_small_backlog_leaves_is_shared_equally() -> None:
    assert shares(x=(FlowDemand("a", 200),), y=IDLE) == {"x": 0.6, "y": 0.4}


def test_one_tenant_s_flood_counts_as_one_tenant() -> None:
    quiet = tuple(FlowDemand(f"quiet-{number}", 150) for number in range(4))
    assert shares(x=(FlowDemand("flood", 100_000),), y=quiet) == {"x": 0.4, "y": 0.6}


def test_a_tenant_at_two_gateways_has_one_share_and_splits_it_by_what_waits() -> None:
    assert shares(
        x=(FlowDemand("a", 3000),),
        y=(FlowDemand("a", 1000), FlowDemand("b", 5000)),
        z=(FlowDemand("c", 5000),),
    ) == {"x": 0.25, "y": round(1 / 12 + 1 / 3, 6), "z": round(1 / 3, 6)}


def test_backlogged_tenants_share_by_weight() -> None:
    assert shares(x=(FlowDemand("paid", 9000, 4),), y=(FlowDemand("free", 9000, 1),)) == {"x": 0.8, "y": 0.2}


def test_the_lower_class_has_its_part_while_the_higher_waits_and_the_rest_of_what_that_leaves() -> None:
    batch = (FlowDemand("b", 9000, 4, priority=1),)
    assert shares(x=(FlowDemand("a", 9000),), y=batch) == {"x": 0.95, "y": 0.05}
    assert shares(x=(FlowDemand("a", 300),), y=batch) == {"x": 0.3, "y": 0.7}


def test_the_part_of_the_lower_class_is_that_of_batch_in_the_queues() -> None:
    served = INTERACTIVE_PER_BATCH + 1
    assert served * LOWER_CLASS_SHARE == pytest.approx(1)


def test_a_little_of_the_lower_class_takes_no_more_than_it_is() -> None:
    assert shares(x=(FlowDemand("a", 9000),), y=(FlowDemand("b", 10, priority=1),)) == {"x": 0.99, "y": 0.01}


def test_many_tenants_that_are_told_as_one_are_others_at_each_gateway() -> None:
    rest = (FlowDemand("", 9000, 3),)
    assert shares(x=rest, y=rest, z=(FlowDemand("a", 9000, 4),)) == {"x": 0.3, "y": 0.3, "z": 0.4}


def test_those_that_are_told_as_one_keep_their_weight_beside_another_demand_without_a_tenant() -> None:
    rest, room = FlowDemand("", 9000, 3), FlowDemand("", 1)
    for ones in ((rest, room), (room, rest)):
        assert shares(x=ones, y=(FlowDemand("a", 9000, 1),)) == {"x": 0.75, "y": 0.25}


@given(demands)
def test_the_shares_make_one_whole(waiting: dict[str, list[FlowDemand]]) -> None:
    divided = window_shares(WINDOW, waiting)
    assert divided.keys() == waiting.keys()
    assert min(divided.values()) >= 0
    assert sum(divided.values()) == pytest.approx(1)


@given(demands)
def test_who_is_short_of_what_waits_has_no_less_for_its_weight_than_anyone_of_the_class(
    waiting: dict[str, list[FlowDemand]],
) -> None:
    """Max-min fairness, with each tenant at a gateway of its own."""
    apart = {
        f"{gateway_id}-{number}": [FlowDemand(f"{gateway_id}-{number}", one.amount, one.weight, one.priority)]
        for gateway_id, ones in waiting.items()
        for number, one in enumerate(ones)
        if one.amount
    }
    if not apart:
        return
    divided = window_shares(WINDOW, apart)
    spare = max(0.0, 1 - sum(one.amount for (one,) in apart.values()) / WINDOW) / len(apart)
    got = {key: (divided[key] - spare) * WINDOW for key in apart}
    for key, (one,) in apart.items():
        if got[key] < one.amount - 1e-6:
            same = [other for other, (row,) in apart.items() if row.priority == one.priority]
            levels = [got[other] / apart[other][0].weight for other in same]
            assert got[key] / one.weight >= max(levels) - 1e-6
