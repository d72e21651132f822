"""In virtual time, on production schedulers: clients that come back when they were told get in, and
nothing stands idle meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from random import Random
from typing import NamedTuple

import pytest

from cluster.waiting.config import WaitingConfig
from tenants.fair_queue import Share
from tests.cluster.waiting_rig import BATCH, FREE, PAID, STEP_S, Ask, Seen, Visit, WaitingRig

SHORT, LONG = (60, 30), (400, 4)
"""Prompt and output tokens: of the first seats are short, of the second tokens."""
NUM_REPLICAS, NUM_SEATS, STEP_TOKENS = 2, 16, 128
EQUALS = tuple(Share(f"tenant-{n}", 4, "interactive") for n in range(1, 5))


class Load(NamedTuple):
    share: Share
    times: float
    """Of what all replicas can serve."""
    begins_s: float = 0.0

    ends_s: float = math.inf
    """Or when all do."""


def capacity(prompt_tokens: int, output_tokens: int) -> float:
    """Requests a second: what seats or steps allow."""
    seats = NUM_SEATS / (STEP_S * (output_tokens - 1 + max(1, prompt_tokens / STEP_TOKENS)))
    steps = STEP_TOKENS / STEP_S / (prompt_tokens + output_tokens)
    return NUM_REPLICAS * min(seats, steps)


def visits(loads: Sequence[Load], size: tuple[int, int], seconds: float) -> list[Visit]:
    rng, made = Random(7), list[Visit]()
    for share, times, begins_s, ends_s in loads:
        at = begins_s
        while (at := at + rng.expovariate(times * capacity(*size))) < min(seconds, ends_s):
            made.append(Visit(at, len(made), Ask(share, *size), 0))
    return made


@cache
def run(
    loads: tuple[Load, ...],
    size: tuple[int, int] = SHORT,
    comes_back: bool = True,
    load_s: float = 20.0,
    until_s: float = 40.0,
) -> Seen:
    rig = WaitingRig(
        num_replicas=NUM_REPLICAS, num_seats=NUM_SEATS, step_tokens=STEP_TOKENS, comes_back=comes_back
    )
    rig.come(visits(loads, size, load_s))
    return rig.run(until_s)


def four_times(size: tuple[int, int]) -> Seen:
    return run((Load(PAID, 4.0),), size)


def free_burst() -> Seen:
    """Into a cluster that knows how long a seat is held."""
    return run((Load(PAID, 0.6), Load(FREE, 8.0, begins_s=5.0)))


def share_in(seen: Seen, share: Share | None = None) -> float:
    returned = seen.returned(share)
    assert len(returned) > 50, "too few came back to prove anything"
    return sum(returned) / len(returned)


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_at_four_times_the_load_the_clients_that_come_when_told_get_in(size: tuple[int, int]) -> None:
    assert share_in(four_times(size)) >= 0.99


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_replicas_have_work_all_the_time(size: tuple[int, int]) -> None:
    assert len(four_times(size).first_token_s) >= 0.95 * capacity(*size) * 40


def test_replicas_have_work_all_the_time_if_nobody_comes_back() -> None:
    seen = run((Load(PAID, 4.0),), comes_back=False, until_s=20.0)
    assert len(seen.first_token_s) >= 0.95 * capacity(*SHORT) * 20


def test_a_crowd_that_asks_again_after_each_answer_gets_in_when_told_and_fills_the_cluster() -> None:
    """Four times as many clients as ten seconds of the line and all seats can hold."""
    rig = WaitingRig(num_replicas=NUM_REPLICAS, num_seats=NUM_SEATS, step_tokens=STEP_TOKENS)
    num_clients = 4 * (NUM_REPLICAS * NUM_SEATS + round(10 * capacity(*SHORT)))
    numbers = count(num_clients)
    rig.come(Visit(0.01 * number, number, Ask(PAID, *SHORT), 0) for number in range(num_clients))
    seen = rig.run(40.0, lambda visit, now: Visit(now, next(numbers), visit.ask, 0))
    assert share_in(seen) >= 0.99
    assert len(seen.first_token_s) >= 0.95 * capacity(*SHORT) * 40


def test_tenants_of_unequal_load_all_get_in_when_told() -> None:
    seen = run(tuple(Load(share, 0.5 * n) for n, share in enumerate(EQUALS, start=1)))
    assert share_in(seen) >= 0.99
    assert len(seen.expired) <= 0.01 * len(seen.entered)


def test_a_burst_of_free_is_told_right_beside_steady_paid_which_is_never_turned_away() -> None:
    seen = free_burst()
    assert [visit for visit, _ in seen.refused if visit.ask.share == PAID] == []
    assert share_in(seen, FREE) >= 0.9


def test_paid_that_fills_the_cluster_is_let_in_before_free_and_batch() -> None:
    seen = run((Load(PAID, 1.0), Load(FREE, 3.0), Load(BATCH, 0.5)))
    came = [visit.ask.share for visit in seen.entered] + [visit.ask.share for visit, _ in seen.refused]
    refused = [visit for visit, _ in seen.refused if visit.ask.share == PAID]
    assert len(refused) <= 0.05 * came.count(PAID)


@pytest.mark.parametrize("cap", [{"max_queue_len": 6}, {"max_waiting": 48}], ids=["its own", "the gateway's"])
def test_clients_who_never_came_back_keep_nobody_out_whose_tenant_asks_for_less_than_its_share(
    cap: dict[str, int],
) -> None:
    """It overloads the cluster, is quiet for 15 s, and then asks for half of its third; others ask for 0.8 of
    the cluster. Caps are such that those who were told to come would leave no room.
    """
    once, others = EQUALS[0], EQUALS[1:3]
    loads = [Load(once, 4.0, ends_s=20.0), Load(once, 1 / 6, begins_s=35.0)]
    loads += [Load(share, 0.4) for share in others]
    rig = WaitingRig(
        num_replicas=NUM_REPLICAS, num_seats=NUM_SEATS, step_tokens=STEP_TOKENS, comes_back=False,
        config=WaitingConfig(max_waiting=cap.get("max_waiting", 4096)),
        max_queue_len=cap.get("max_queue_len"),
    )  # fmt: skip
    rig.come(visits(loads, SHORT, 55.0))
    refused = [visit for visit, _ in rig.run(55.0).refused if visit.ask.share == once]
    assert len(refused) > 500
    assert [visit for visit in refused if visit.at >= 35.0] == []


@pytest.mark.parametrize("seen", [four_times, lambda size: free_burst()], ids=["four times", "free burst"])
def test_those_who_get_in_have_their_first_token_in_time(seen: Callable[[tuple[int, int]], Seen]) -> None:
    in_time = [seconds <= 10.0 for seconds in seen(SHORT).first_token_s.values()]
    assert sum(in_time) >= 0.99 * len(in_time)


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_waits_are_predicted_within_a_second(size: tuple[int, int]) -> None:
    """From the fifth second on: before, a seat is thought to be held for as long as the cold value says."""
    errors_s = [abs(actual - predicted) for predicted, actual in four_times(size).waits]
    later = errors_s[round(5 * capacity(*size)) :]
    assert sum(error_s <= 1.0 for error_s in later) >= 0.9 * len(later)
