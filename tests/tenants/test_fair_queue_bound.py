"""How far tenants come apart: the bound of `tenants/class_queue.py`, over random histories."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.fair_queue import FairQueue, Share
from tests.tenants.fair_builders import a_share, an_entry, popped, pushed
from tests.tenants.fair_contest import Contest

ROUNDING = 1e-6
QUANTA = st.sampled_from([1, 64, 512])
SEEDS = st.integers(0, 2**32)
WEIGHTS = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=2, max_size=4)


def shares_of(weights: list[int]) -> list[Share]:
    return [a_share(f"t{number}", weight) for number, weight in enumerate(weights)]


def push_some(queue: FairQueue, share: Share, rng: Random, num: int) -> None:
    """The tenants differ in how long their prompts are."""
    most = 100 + 600 * (int(share.tenant_id[1:]) % 3)
    for _ in range(num):
        queue.push(an_entry(share, rng.randint(50, most), rng.choice([0, 0, 160, 1600])))


def assert_bounded(contest: Contest, quantum: int, unheard: Mapping[str, float]) -> None:
    """`unheard`: U of the bound, in tokens."""
    for pair in permutations(contest.shares, 2):
        from_leaves = sum(contest.between_leaves(tenant_id) for tenant_id in pair)
        from_news = sum(unheard[tenant_id] / contest.shares[tenant_id].weight for tenant_id in pair)
        assert contest.furthest_ahead(*pair) <= 2 * quantum + from_leaves + from_news + ROUNDING


@given(QUANTA, WEIGHTS, SEEDS, st.sampled_from([0, 50, 1000]))
def test_who_waits_falls_behind_nobody_by_more_than_the_bound(
    quantum: int, weights: list[int], seed: int, most_output: int
) -> None:
    """Lines run dry and fill again, and some requests are given up while they wait."""
    rng, queue, shares = Random(seed), FairQueue(quantum), shares_of(weights)
    contest = Contest(shares, queue)
    for _ in range(150):
        share = rng.choice(shares)
        if queue.num_of(share.tenant_id) < rng.choice([1, 1, 4]):
            push_some(queue, share, rng, rng.randint(1, 6))
        if rng.random() < 0.1 and (next_entry := queue.peek()) is not None:
            contest.cancel(queue, next_entry.entry_id)
        contest.leave(queue, rng.randint(0, most_output))
        if contest.running:
            contest.make(queue, rng.choice(contest.running), rng.randint(1, 400))
    assert_bounded(contest, quantum, dict.fromkeys(contest.shares, 0.0))


def weighted_jain(served_by_weight: list[float]) -> float:
    """1: all have had the same; 1/n: one has had it all (Jain, Chiu and Hawe, DEC-TR-301, 1984)."""
    return sum(served_by_weight) ** 2 / (len(served_by_weight) * sum(one**2 for one in served_by_weight))


def test_a_flooder_of_a_hundred_times_the_requests_gets_the_same_as_each_other() -> None:
    queue, quiet = FairQueue(), [f"quiet{number}" for number in range(10)]
    arrivals = [an_entry(tenant_id, 200) for _ in range(20) for tenant_id in [*quiet, *["flooder"] * 100]]
    for entry in arrivals:
        queue.push(entry)

    def jain(num: int, first_come: bool) -> float:
        leaving = arrivals[:num] if first_come else popped(queue, num)
        tenants = [entry.share.tenant_id for entry in leaving]
        return weighted_jain([tenants.count(tenant_id) for tenant_id in [*quiet, "flooder"]])

    assert jain(150, first_come=False) > 0.99
    assert jain(150, first_come=True) < 0.15


def test_paid_gets_four_tokens_for_each_of_free() -> None:
    queue, rng = FairQueue(), Random(1)
    shares = [a_share("paid", 4), a_share("free", 1)]
    contest = Contest(shares, queue)
    for share in shares:
        pushed(queue, share, *[rng.randint(10, 600) for _ in range(1000)])
    for _ in range(800):
        running = contest.leave(queue, rng.randint(1, 500))
        assert running is not None
        contest.make(queue, running, 500)
    assert contest.served["paid"] / contest.served["free"] == pytest.approx(4, rel=0.02)


@given(QUANTA, WEIGHTS, SEEDS)
def test_a_new_request_waits_for_its_tenant_s_line_whatever_the_others_have_waiting(
    quantum: int, weights: list[int], seed: int
) -> None:
    """What goes before it is at most what keeps the others level with it, and the bound."""
    rng, queue, shares = Random(seed), FairQueue(quantum), shares_of(weights)
    contest = Contest(shares, queue)
    for share in shares[1:]:
        push_some(queue, share, rng, 60)
    for _ in range(20):
        contest.leave(queue, 0)
    own = rng.randint(0, 5)
    push_some(queue, shares[0], rng, own)
    last = an_entry(shares[0], 100)
    queue.push(last)
    before = dict(contest.served)
    while last.entry_id in queue:
        assert contest.leave(queue, 0) is not None
    mine = (contest.served[last.share.tenant_id] - last.input_service) / last.share.weight
    for share in shares[1:]:
        theirs = (contest.served[share.tenant_id] - before.get(share.tenant_id, 0.0)) / share.weight
        most = sum(contest.between_leaves(one.tenant_id) for one in (share, last.share))
        assert theirs <= mine + 2 * quantum + most + ROUNDING
