"""The waiting room and its replicas: none is there, one dies, what they are told, what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from cluster.backlog import Backlog
from cluster.chooser import Booking
from cluster.credit import Credit
from cluster.link import Report
from cluster.routing import ReplicaLoad
from cluster.waiting.config import WaitingConfig
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.wait_estimate import WaitEstimator
from engine.request import SamplingParams
from tenants.queued import Share
from tests.builders import make_request
from tests.cluster.fake_replica import row, settle
from tests.cluster.generator_rig import Rig, tokens
from tests.cluster.room_rig import (
    PLENTY,
    a_room,
    begun,
    error_of,
    grant,
    order,
    with_replica,
)
from tests.cluster.waiting_rig import an_arrival


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Replica a is there, and has granted nothing."""
    rig = Rig()
    await with_replica(rig)
    yield rig
    await rig.links.close()


class TestWithoutAReplica:
    async def test_requests_are_held_in_order_until_the_first_one_comes(self) -> None:
        rig = Rig(WaitingConfig(max_held=3))
        rig.next_replica_s = 30.0
        held = [await begun(rig, f"r{number}") for number in range(3)]
        error = await error_of(await begun(rig, "one too many"))
        assert (error.status, error.code) == (503, "overloaded")
        assert 30 <= (error.retry_after_s or 0) <= 35
        rig.now = 29.0  # the deadline of the first token has passed long ago
        await rig.dispatching.room.look()
        assert not any(starting.done() for starting in held)
        await with_replica(rig)
        await grant(rig, 2)
        assert order(rig) == ["r0", "r1"]
        await grant(rig, 1)
        assert order(rig) == ["r0", "r1", "r2"]
        await rig.links.close()

    async def test_who_waits_when_the_last_one_dies_is_held_too(self, rig: Rig) -> None:
        starting = await begun(rig, "r")
        rig.replicas["a"].die()
        await settle()
        await rig.dispatching.room.look()
        rig.now = 30.0
        await with_replica(rig, "b")
        await grant(rig, 1, replica="b")
        assert (await starting).replica_id == "b"

    async def test_and_none_on_its_way_nobody_is_held(self) -> None:
        rig = Rig()
        assert (await error_of(await begun(rig, "r"))).code == "no_capacity"
        await rig.links.close()


class TestAResumption:
    async def test_waits_for_no_turn_and_for_no_credit(self, rig: Rig) -> None:
        await with_replica(rig, "a", "b")
        await grant(rig, 1)
        generation = await rig.start()
        waits = await begun(rig, "waits")
        rig.replicas["a"].say(tokens("abc"), credit=Credit(PLENTY, 1))
        rig.replicas["a"].die()
        deltas = generation.deltas()
        assert (await anext(deltas)).text == "abc"
        resumed = asyncio.ensure_future(anext(deltas))
        await settle()
        (sent,) = rig.replicas["b"].submitted
        assert (sent.request_id, sent.output_token_ids) == ("r-1", tuple(map(ord, "abc")))
        assert (waits.done(), resumed.done()) == (False, False)
        rig.replicas["b"].say(row("r-1", 3, ord("d"), finish="stop"))
        assert (await resumed).text == "d"


class TestSiblings:
    async def test_take_a_seat_each(self, rig: Rig) -> None:
        await begun(rig, "r1", n=3)
        await begun(rig, "r2")
        rig.replicas["a"].say(credit=Credit(PLENTY, 3))
        await settle()
        assert [(sent.request_id, sent.n) for sent in rig.replicas["a"].submitted] == [("r1-0", 3)]

    async def test_are_told_to_replicas_as_requests_that_wait(self, rig: Rig) -> None:
        await begun(rig, "r1", n=3, terms={"weight": 4})
        await begun(rig, "r2", terms={"weight": 4})
        await begun(rig, "b", "nightly", service_class="batch", prompt_token_ids=(1, 2, 3))
        await rig.dispatching.room.look()
        await settle()
        told = (Backlog("acme", 80, 4, 4, 0), Backlog("nightly", 3, 1, 1, 1))
        assert rig.replicas["a"].reports == [Report(told)]

    async def test_that_had_their_turn_are_told_no_more(self, rig: Rig) -> None:
        await begun(rig, "r1", n=3)
        await rig.dispatching.room.look()
        await grant(rig, 3)
        await rig.dispatching.room.look()
        async with asyncio.timeout(5):
            while len(rig.replicas["a"].reports) < 2:  # noqa: ASYNC110  told every 100 ms at most
                await asyncio.sleep(0.01)
        assert rig.replicas["a"].reports[-1] == Report(())


class TestABrownOut:
    MANY = SamplingParams(max_tokens=500)

    @staticmethod
    async def crowd(rig: Rig) -> None:
        """Of tenants that pay: it will wait for half of its deadline."""
        for number in range(8):
            await begun(rig, f"crowd {number}", f"paid {number % 4}", terms={"weight": 4})

    async def test_shortens_answers_of_light_tenants_only(self, rig: Rig) -> None:
        await self.crowd(rig)
        light = await begun(rig, "light", "free", sampling=self.MANY)
        heavy = await begun(rig, "heavy", "paid", sampling=self.MANY, terms={"weight": 4})
        await grant(rig, 10)
        assert [(await one).max_tokens for one in (light, heavy)] == [256, 500]
        sent = {one.request_id: one.sampling.max_tokens for one in rig.replicas["a"].submitted}
        assert (sent["light-0"], sent["heavy-0"]) == (256, 500)

    async def test_never_below_what_was_asked_for_at_least(self, rig: Rig) -> None:
        await self.crowd(rig)
        sampling = SamplingParams(max_tokens=500, min_tokens=300)
        light = await begun(rig, "light", "free", sampling=sampling)
        await grant(rig, 10)
        assert (await light).max_tokens == 300


async def test_a_request_that_cannot_be_booked_fails_alone_and_is_charged_nothing(rig: Rig) -> None:
    loads = [ReplicaLoad("a", 0, 0, 0)]
    booked: list[str] = []
    replicas: list[ReplicaLoad] = []
    room = a_room(
        GatewayQueue(WaitEstimator(), Random(0), WaitingConfig()), lambda wanted: replicas, rig.links
    )

    def turn_of(entry_id: str, tenant_id: str) -> asyncio.Task[Booking]:
        def book(there: Sequence[ReplicaLoad]) -> Booking:
            if entry_id == "bad":
                raise KeyError(entry_id)
            booked.append(entry_id)
            return Booking("a", make_request(), rig.links)

        share = Share(tenant_id, 1, "interactive")
        return asyncio.ensure_future(room.turn(an_arrival(entry_id, share), book))

    turns = [turn_of("bad", "acme"), turn_of("good", "acme"), turn_of("other", "other")]
    await settle()
    replicas += loads
    room.let_go()
    with pytest.raises(KeyError):
        await turns[0]
    await asyncio.gather(*turns[1:])
    assert booked == ["good", "other"]


async def test_a_replica_that_falls_silent_within_the_turn_gets_the_one_that_was_promised_to_it() -> None:
    """Between two questions time passes; an answer of yes and then of nobody would leave a turn to no one."""
    loads = [ReplicaLoad("a", 0, 0, 0)]
    answers = iter([loads, loads])
    seen: list[Sequence[ReplicaLoad]] = []
    queue = GatewayQueue(WaitEstimator(), Random(0), WaitingConfig())
    rig = Rig()
    room = a_room(queue, lambda num_tokens: next(answers, []), rig.links)

    def book(there: Sequence[ReplicaLoad]) -> Booking:
        seen.append(there)
        return Booking("a", make_request(), rig.links)

    booking = await room.turn(an_arrival(), book)
    assert (booking.replica_id, seen) == ("a", [loads])
