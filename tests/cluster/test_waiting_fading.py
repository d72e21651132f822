"""How the past fades: beside each amount faded by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.waiting.fading import DecayedSum, kept_after

TIME_CONSTANT_S = 4.0


def test_one_time_constant_leaves_one_part_in_e() -> None:
    assert kept_after(TIME_CONSTANT_S, TIME_CONSTANT_S) == 1 / math.e
    assert kept_after(math.inf, TIME_CONSTANT_S) == 0
    assert kept_after(-1.0, TIME_CONSTANT_S) == 1, "a clock that stands still takes nothing away"


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 100))), st.floats(0, 20))
def test_each_amount_has_faded_since_it_came(amounts: list[tuple[float, float]], later_s: float) -> None:
    total, now = DecayedSum(TIME_CONSTANT_S), 0.0
    came: list[tuple[float, float]] = []
    for passed_s, amount in amounts:
        now += passed_s
        total.add(amount, now)
        came.append((now, amount))
        assert total.added_at == now
    until = now + later_s
    faded = sum(amount * math.exp((at - until) / TIME_CONSTANT_S) for at, amount in came)
    assert total.at(until) == pytest.approx(faded)
