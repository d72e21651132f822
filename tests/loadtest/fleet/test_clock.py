"""Virtual time: events happen in order, each at its time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.fleet.clock import VirtualClock


@given(st.lists(st.integers(0, 5)))
def test_events_happen_in_the_order_of_their_times_and_then_as_they_were_set(times: list[int]) -> None:
    clock = VirtualClock()
    happened: list[tuple[float, int]] = []
    for number, time in enumerate(times):
        clock.at(time, lambda number=number: happened.append((clock.now, number)))  # type: ignore[misc]
    clock.run(until=10.0)
    assert happened == sorted((float(time), number) for number, time in enumerate(times))


def test_what_recurs_does_so_until_it_is_to_end() -> None:
    clock = VirtualClock()
    seen: list[float] = []
    clock.every(0.5, lambda: seen.append(clock.now), until=lambda: clock.now >= 2.0)
    clock.run(until=5.0)
    assert seen == [0.5, 1.0, 1.5]


def test_a_time_that_is_over_is_now_and_a_run_ends_when_it_is_over() -> None:
    clock = VirtualClock()
    seen: list[float] = []
    clock.at(1.0, lambda: clock.at(0.0, lambda: seen.append(clock.now)))
    clock.at(2.0, lambda: seen.append(clock.now))
    clock.run(until=3.0, is_over=lambda: bool(seen))
    assert seen == [1.0]
