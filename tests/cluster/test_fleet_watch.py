"""What a gateway's queue is told of the replicas, and they of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from cluster.admission_windows import FLOOR, full_window
from cluster.backlog import Backlog
from cluster.credit import Credit
from cluster.fleet_watch import LOOK_EVERY_S, FleetWatch
from cluster.link import Report
from cluster.waiting.fleet import NOBODY, Fleet
from cluster.waiting.wait_estimate import WaitEstimator
from tests.cluster.fake_replica import IDLE, LinkRig, request, settle
from tests.cluster.waiting_rig import BATCH, PAID, an_arrival

BUSY = replace(IDLE, requests_running=2, requests_waiting=1)
SEATS = 4


class Seeing:
    """A queue that remembers what it saw."""

    def __init__(self) -> None:
        self.estimator = WaitEstimator()
        self.fleets: list[Fleet] = []

    def see(self, fleet: Fleet, now: float) -> None:
        self.fleets.append(fleet)


class Rig(LinkRig):
    def __init__(self) -> None:
        super().__init__()
        self.queue = Seeing()
        self.watch = FleetWatch(self.queue, self.links, lambda: self.now)

    async def open(self, *replica_ids: str) -> None:
        self.links.set_replicas(frozenset(replica_ids))
        await settle()

    def seen(self) -> Fleet:
        self.watch.look()
        return self.queue.fleets[-1]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.links.close()


async def test_the_queue_sees_all_seats_of_those_that_take_work_and_those_that_are_free(rig: Rig) -> None:
    assert rig.seen() == NOBODY
    await rig.open("a", "b")
    assert rig.seen() == Fleet(2, 2 * SEATS, 2 * SEATS)
    rig.replica("a").say(counters=BUSY)
    await settle()
    assert rig.seen() == Fleet(2, 2 * SEATS, SEATS + 1)
    rig.now = 2.0  # nobody was heard since
    assert rig.seen() == NOBODY


async def test_what_is_on_its_way_to_a_replica_takes_a_seat_there(rig: Rig) -> None:
    await rig.open("a")
    submits = [
        asyncio.ensure_future(rig.links.submit("a", request(f"r{number}"), asyncio.Event()))
        for number in range(2)
    ]
    assert [await one for one in submits]
    assert rig.seen() == Fleet(1, SEATS, SEATS - 2)
    for counters in (IDLE, replace(IDLE, requests_running=2)):
        rig.replica("a").say(counters=counters)
    await settle()
    assert rig.seen() == Fleet(1, SEATS, SEATS - 2), "it is in the counters by now, and counts once"


async def test_more_than_there_are_seats_leave_none(rig: Rig) -> None:
    await rig.open("a")
    rig.replica("a").say(counters=replace(IDLE, requests_running=SEATS, requests_waiting=3))
    await settle()
    assert rig.seen() == Fleet(1, SEATS, 0)


async def test_the_queue_sees_when_the_next_one_comes(rig: Rig) -> None:
    rig.watch = FleetWatch(rig.queue, rig.links, lambda: rig.now, lambda: 30.0)
    assert rig.seen() == NOBODY._replace(next_replica_s=30.0)


async def test_the_queue_sees_which_part_of_all_replicas_is_this_gateways(rig: Rig) -> None:
    """By its windows against all windows of theirs; one is told no limit, and is its own."""
    rig.watch = FleetWatch(rig.queue, rig.links, lambda: rig.now, num_gateways=2)
    whole = full_window(64, SEATS)
    await rig.open("a", "b")
    rig.replica("a").say(credit=Credit(whole.tokens // 4, 0))
    await settle()
    assert rig.seen().part == pytest.approx((0.25 + 1) / 2, abs=0.01)


async def test_an_equal_part_is_its_own_even_if_it_has_asked_for_less(rig: Rig) -> None:
    """Somebody else asks for all of it; as soon as anybody waits here windows are divided anew."""
    rig.watch = FleetWatch(rig.queue, rig.links, lambda: rig.now, num_gateways=4)
    await rig.open("a")
    rig.replica("a").say(credit=FLOOR)
    await settle()
    assert rig.seen().part == 0.25


async def test_it_looks_when_it_is_due_and_at_once_when_a_replica_comes(rig: Rig) -> None:
    def num_looks() -> int:
        rig.watch.look_if_due()
        return len(rig.queue.fleets)

    assert [num_looks(), num_looks()] == [1, 1]
    rig.now = LOOK_EVERY_S
    assert [num_looks(), num_looks()] == [2, 2]
    await rig.open("a")
    assert [num_looks(), num_looks()] == [3, 3]


async def test_rates_are_learned_of_those_alone_that_take_work(rig: Rig) -> None:
    done = replace(IDLE, prefix_queries_tokens_total=100_000, queued_tokens=1)
    rates = rig.queue.estimator.rates
    before = rates.prefill_tokens_per_s
    await rig.open("a", "b")
    rig.watch.look()
    rig.now = LOOK_EVERY_S
    rig.replica("a").say(counters=done, is_leaving=True)
    await settle()
    rig.watch.look()
    assert rates.prefill_tokens_per_s == before
    rig.now = 2 * LOOK_EVERY_S
    rig.replica("b").say(counters=done)
    await settle()
    rig.watch.look()
    assert rates.prefill_tokens_per_s > before


async def test_replicas_are_told_what_waits_by_tenant_class_and_weight(rig: Rig) -> None:
    await rig.open("a")
    waiting = [
        an_arrival("1", PAID, 100),
        an_arrival("2", BATCH, 50),
        an_arrival("3", PAID, 30, num_siblings=3),
        an_arrival("4", PAID._replace(weight=1), 7),
    ]
    rig.watch.report(waiting)
    await settle()
    told = (
        Backlog("paid", 130, 4, 4, 0),
        Backlog("nightly", 50, 1, 4, 1),
        Backlog("paid", 7, 1, 1, 0),
    )
    assert rig.replica("a").reports == [Report(told)]
