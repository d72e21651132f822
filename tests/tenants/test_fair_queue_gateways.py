"""Two gateways with a queue each, which hear of each other's service late, in virtual time."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.fair_queue import FairQueue, Share
from tests.tenants.fair_builders import a_share, pushed
from tests.tenants.fair_contest import Contest, Running
from tests.tenants.test_fair_queue_bound import QUANTA, SEEDS, WEIGHTS, assert_bounded, push_some, shares_of

TICKS_OF_NEWS = 10
"""Of 10 ms: how often a gateway tells what it served; it takes up to twice as long to arrive."""
TICKS_UNHEARD = 3 * TICKS_OF_NEWS
"""0.3 s."""


class News(NamedTuple):
    due: int
    share: Share
    tokens: float


class Gateway:
    def __init__(self, contest: Contest, queue: FairQueue, tokens_per_tick: int, rng: Random) -> None:
        self.queue = queue
        self.served: list[Counter[str]] = []
        """By tick and tenant, in tokens of service."""
        self._contest, self._tokens_per_tick, self._rng = contest, tokens_per_tick, rng
        self._running: list[Running] = []
        self._untold: Counter[str] = Counter()
        self._news: deque[News] = deque()

    def hear(self, news: list[News], now: int) -> None:
        self._news.extend(news)
        for one in [one for one in self._news if one.due <= now]:
            self._news.remove(one)
            self.queue.charge(one.share, one.tokens)

    def serve(self) -> None:
        """Until a tick's tokens are spent."""
        served: Counter[str] = Counter()
        for running in self._running:
            made = self._contest.make(self.queue, running, self._rng.randint(1, 50))
            served[running.entry.share.tenant_id] += made
        self._running = [running for running in self._running if running.to_make]
        while served.total() < self._tokens_per_tick:
            left = self._contest.leave(self.queue, self._rng.randint(1, 100))
            assert left is not None
            self._running.append(left)
            served[left.entry.share.tenant_id] += left.entry.input_service
        self.served.append(served)
        self._untold += served

    def tell(self, now: int) -> list[News]:
        if now % TICKS_OF_NEWS:
            return []
        due = now + self._rng.randint(0, TICKS_UNHEARD - TICKS_OF_NEWS)
        news = [News(due, self._contest.shares[one], tokens) for one, tokens in self._untold.items()]
        self._untold.clear()
        return news

    def most_unheard(self, tenant_id: str) -> float:
        served = [tick[tenant_id] for tick in self.served]
        return max(sum(served[tick : tick + TICKS_UNHEARD]) for tick in range(len(served)))


@settings(max_examples=25)
@given(QUANTA, WEIGHTS, SEEDS, st.sampled_from([200, 1000]))
def test_who_waits_at_both_falls_behind_by_no_more_than_the_bound_and_what_was_unheard(
    quantum: int, weights: list[int], seed: int, tokens_per_tick: int
) -> None:
    rng, shares = Random(seed), shares_of(weights)
    queues = [FairQueue(quantum), FairQueue(quantum)]
    contest = Contest(shares, *queues)
    one, other = (Gateway(contest, queue, tokens_per_tick, rng) for queue in queues)
    for now in range(60):
        for queue in queues:
            for share in shares:
                push_some(queue, share, rng, max(0, 30 - queue.num_of(share.tenant_id)))
        for here, there in ((one, other), (other, one)):
            here.serve()
            there.hear(here.tell(now), now)
    unheard = {
        tenant_id: max(one.most_unheard(tenant_id), other.most_unheard(tenant_id))
        for tenant_id in contest.shares
    }
    assert_bounded(contest, quantum, unheard)


def test_what_a_tenant_gets_at_one_gateway_it_does_not_get_again_at_the_other() -> None:
    """a waits at both, b at one, which is b's as soon as it is known what a gets at the other."""
    rng, shares = Random(1), [a_share("a"), a_share("b")]
    queues = [FairQueue(), FairQueue()]
    contest = Contest(shares, *queues)
    here, there = (Gateway(contest, queue, 500, rng) for queue in queues)
    for share, queue in ((shares[0], queues[0]), (shares[1], queues[0]), (shares[0], queues[1])):
        pushed(queue, share, *[200] * 1000)
    for now in range(150):
        for gateway, other in ((here, there), (there, here)):
            gateway.serve()
            other.hear(gateway.tell(now), now)
    since_known = sum(here.served[TICKS_UNHEARD:], Counter())
    assert since_known["b"] > 0.95 * since_known.total()
