"""The waiting room: who waits for credit, whose turn comes, and that whoever goes takes nothing along."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from cluster.api.errors import ApiError
from cluster.chooser import Booking
from cluster.credit import Credit
from cluster.routing import ReplicaLoad
from cluster.served_elsewhere import FlowService
from cluster.waiting.config import WaitingConfig
from cluster.waiting.first_tokens import NUM_LATER
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.replica_rates import COLD_PREFILL_TOKENS_PER_S
from cluster.waiting.wait_estimate import WaitEstimator
from engine.request import RequestOutput
from tests.cluster.fake_replica import settle
from tests.cluster.generator_rig import PROMPT, Frozen, Rig
from tests.cluster.room_rig import (
    PLENTY,
    STEP,
    Starting,
    a_room,
    begun,
    error_of,
    grant,
    is_empty,
    order,
    small_rig,
    with_replica,
)
from tests.cluster.waiting_rig import PAID, an_arrival


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Replica a is there, and has granted nothing."""
    rig = Rig()
    await with_replica(rig)
    yield rig
    await rig.links.close()


class TestATurn:
    async def test_comes_with_credit_and_one_after_the_other(self, rig: Rig) -> None:
        waiting = [await begun(rig, name) for name in ("r1", "r2", "r3")]
        assert order(rig) == []
        await grant(rig, 2)
        assert order(rig) == ["r1", "r2"]
        assert [starting.done() for starting in waiting] == [True, True, False]
        await grant(rig, 1)
        assert order(rig) == ["r1", "r2", "r3"]

    async def test_goes_round_the_tenants(self, rig: Rig) -> None:
        for name in ("flood 1", "flood 2", "flood 3"):
            await begun(rig, name, "flood")
        await begun(rig, "quiet 1", "quiet")
        await grant(rig, 2)
        assert order(rig) == ["flood 1", "quiet 1"]

    async def test_of_a_short_prompt_passes_a_long_one_that_has_no_credit(self, rig: Rig) -> None:
        long = tuple(range(2 * STEP))
        for tenant_id in ("one", "other"):
            await begun(rig, f"long of {tenant_id}", tenant_id, prompt_token_ids=long)
        await begun(rig, "short", "quiet", prompt_token_ids=(1, 2, 3))
        await grant(rig, 10, num_tokens=STEP)
        assert order(rig) == ["long of one", "short"]

    async def test_says_how_long_it_was_waited_for(self, rig: Rig) -> None:
        starting = await begun(rig, "r")
        rig.now = 0.75
        await grant(rig, 1)
        assert (rig.dispatching.seen.waits, (await starting).waited_s) == ([0.75], 0.75)

    async def test_of_who_finds_credit_comes_at_once(self, rig: Rig) -> None:
        await grant(rig, 1)
        generation = await rig.start()
        assert (rig.dispatching.seen.waits, generation.waited_s) == ([0.0], 0.0)

    async def test_teaches_how_long_after_it_the_first_token_comes(self, rig: Rig) -> None:
        names = [f"r{number}" for number in range(NUM_LATER + 1)]
        starting = [await begun(rig, name) for name in names]
        rig.now = 1.0
        await grant(rig, len(names))
        rig.now = 1.75
        rig.replicas["a"].say(
            *(RequestOutput(f"{name}-0", 0, 0, 0, (65,), num_cached_tokens=0) for name in names)
        )
        for one in starting:
            await anext((await one).deltas())
        own_prefill_s = len(PROMPT) / COLD_PREFILL_TOKENS_PER_S
        assert rig.dispatching.queue.estimator.after_turn_s == 0.75 - own_prefill_s

    async def test_goes_on_elsewhere_if_the_replica_dies_in_it_and_is_no_suspect(self, rig: Rig) -> None:
        await with_replica(rig, "a", "b")
        starting = await begun(rig, "r")
        rig.replicas["a"].say(credit=Credit(PLENTY, 1))
        rig.replicas["a"].die()
        await settle()
        (sent,) = rig.replicas["b"].submitted
        assert (order(rig, "a"), sent.is_suspect) == ([], False)
        assert (await starting).replica_id == "b"

    async def test_is_waited_for_by_one_whose_output_came_and_others_had_less(self, rig: Rig) -> None:
        await begun(rig, "r1")
        await begun(rig, "other 1", "other")
        await begun(rig, "r2")
        rig.dispatching.room.served(PAID._replace(tenant_id="acme"), 5000)
        await grant(rig, 3)
        assert order(rig) == ["other 1", "r1", "r2"]

    async def test_counts_what_other_gateways_gave_to_a_tenant(self, rig: Rig) -> None:
        await begun(rig, "r1")
        await begun(rig, "other 1", "other")
        elsewhere = [
            FlowService("acme", 5000.0),
            FlowService("other", 9000.0, 1),
            FlowService("a stranger", 1.0),
        ]
        rig.dispatching.room.served_elsewhere(elsewhere)
        await grant(rig, 2)
        assert order(rig) == ["other 1", "r1"]


def leaves_in_its_turn(rig: Rig, starting: Starting) -> None:
    """Its client: when it has just been let go."""

    def let_go_and_leave() -> None:
        rig.on_credit = rig.dispatching.room.let_go
        rig.on_credit()
        starting.cancel()

    rig.on_credit = let_go_and_leave


def leaves_before_its_turn(rig: Rig, starting: Starting) -> None:
    """Its client: when it is just about to be let go."""

    def leave_and_let_go() -> None:
        starting.cancel()
        rig.dispatching.room.let_go()

    rig.on_credit = leave_and_let_go


class TestAClientThatLeaves:
    async def test_while_it_waits_takes_nothing_along(self, rig: Rig) -> None:
        starting = await begun(rig, "r")
        starting.cancel()
        await settle()
        assert await is_empty(rig)
        assert (rig.admission.books.outcomes, order(rig)) == (["unserved"], [])

    async def test_in_its_very_turn_leaves_it_to_the_next_one(self, rig: Rig) -> None:
        starting, behind = await begun(rig, "r"), await begun(rig, "behind")
        leaves_in_its_turn(rig, starting)
        await grant(rig, 1)
        assert order(rig) == ["behind"]
        assert (starting.cancelled(), behind.done()) == (True, True)
        assert rig.admission.books.outcomes == ["unserved"]

    async def test_just_before_its_turn_leaves_it_to_the_next_one(self, rig: Rig) -> None:
        starting, behind = await begun(rig, "r"), await begun(rig, "behind")
        leaves_before_its_turn(rig, starting)
        await grant(rig, 1)
        assert (order(rig), behind.done()) == (["behind"], True)

    async def test_in_its_very_turn_is_charged_nothing(self, rig: Rig) -> None:
        starting = await begun(rig, "r")
        for name, tenant_id in (("r1", "acme"), ("other 1", "other"), ("r2", "acme")):
            await begun(rig, name, tenant_id)
        leaves_in_its_turn(rig, starting)
        await grant(rig, 1)
        assert order(rig) == ["r1"]
        await grant(rig, 2)
        assert order(rig) == ["r1", "other 1", "r2"]

    async def test_just_before_its_turn_is_charged_nothing(self, rig: Rig) -> None:
        starting = await begun(rig, "r")
        for name, tenant_id in (("r1", "acme"), ("other 1", "other")):
            await begun(rig, name, tenant_id)
        leaves_before_its_turn(rig, starting)
        await grant(rig, 1)
        assert order(rig) == ["r1"]

    async def test_when_its_time_is_over_and_it_was_not_told_yet_troubles_nobody(self, rig: Rig) -> None:
        late = await begun(rig, "late")
        rig.now = 10.0
        other = await begun(rig, "refused", deadline=10.0)  # at its door the first one is seen to be late
        late.cancel()
        await settle()
        await rig.dispatching.room.look()
        assert (await error_of(other)).code == "deadline_exceeded"
        assert rig.dispatching.seen.turned_away == [("acme", "deadline_exceeded")]
        assert await is_empty(rig)


class TestWhoMayNotWait:
    async def test_is_refused_before_anything_is_taken_for_it(self) -> None:
        rig = await small_rig(max_waiting=1)
        await begun(rig, "r1")
        error = await error_of(await begun(rig, "r2"))
        assert (error.status, error.code) == (503, "overloaded")
        assert error.retry_after_s is not None
        assert [one.request_id for one in rig.admission.books.opened] == ["r1"]
        assert rig.demand.shed_tokens_total == 40 + 8
        await rig.links.close()

    async def test_after_it_was_admitted_gets_back_what_was_taken(self) -> None:
        """Two passed the check before either waited."""
        rig = await small_rig(max_waiting=1)
        rig.admission.may_answer = asyncio.Event()
        first, second = await begun(rig, "r1"), await begun(rig, "r2")
        rig.admission.may_answer.set()
        assert (await error_of(second)).code == "overloaded"
        assert (first.done(), rig.admission.books.outcomes) == (False, ["unserved"])
        await rig.links.close()

    async def test_is_shed_for_one_that_stands_higher_and_gets_back_what_was_taken(self) -> None:
        rig = await small_rig(max_waiting=2)
        batch = [await begun(rig, name, "nightly", service_class="batch") for name in ("b1", "b2")]
        await begun(rig, "r")
        error = await error_of(batch[1])
        assert (error.status, error.code) == (503, "overloaded")
        assert error.retry_after_s is not None
        assert (rig.dispatching.seen.turned_away, rig.admission.books.outcomes) == (
            [("nightly", "overloaded")],
            ["unserved"],
        )
        await grant(rig, 3)
        assert order(rig) == ["r", "b1"]
        await rig.links.close()

    async def test_is_told_429_if_its_tenant_has_enough_that_wait(self, rig: Rig) -> None:
        terms = {"max_queue_len": 1}
        await begun(rig, "r1", terms=terms)
        error = await error_of(await begun(rig, "r2", terms=terms))
        assert (error.status, error.code) == (429, "queue_full")
        assert error.retry_after_s is not None
        assert rig.dispatching.seen.turned_away == [("acme", "queue_full")]
        assert rig.demand.shed_tokens_total == 0, "more replicas would not help it"

    async def test_long_enough_gets_503_and_never_reaches_a_replica(self, rig: Rig) -> None:
        starting = await begun(rig, "r")
        rig.now = 10.0
        await grant(rig, 1)
        error = await error_of(starting)
        assert (error.status, error.code, error.retry_after_s) == (503, "deadline_exceeded", None)
        assert (order(rig), rig.admission.books.outcomes) == ([], ["unserved"])
        assert await is_empty(rig)

    async def test_long_enough_is_told_in_time_if_nothing_else_happens(self, rig: Rig) -> None:
        queue = GatewayQueue(WaitEstimator(), Random(0), WaitingConfig(interactive_deadline_s=0.01))
        room = a_room(queue, lambda num_tokens: [], rig.links, clock=time.monotonic)
        arrival = an_arrival(tokens=1, now=time.monotonic(), config=queue.config)
        with pytest.raises(ApiError) as caught:
            async with asyncio.timeout(5):
                await room.turn(arrival, nobody)
        assert caught.value.code == "deadline_exceeded"

    async def test_because_its_tenant_is_frozen_is_told_at_once(self, rig: Rig) -> None:
        starting = await begun(rig, "r")
        await rig.running.check(Frozen())
        error = await error_of(starting)
        assert (error.status, error.code) == (403, "tenant_disabled")
        assert rig.admission.books.outcomes == ["unserved"]
        assert await is_empty(rig)
        assert (order(rig), rig.demand.shed_tokens_total) == ([], 0)

    async def test_because_the_gateway_ends_is_told_at_once_and_so_is_who_comes_later(self, rig: Rig) -> None:
        rig.next_replica_s = 60.0
        starting = await begun(rig, "r")
        rig.dispatching.room.close()
        later = await begun(rig, "later")
        for one in (starting, later):
            error = await error_of(one)
            assert (error.status, error.code, error.retry_after_s) == (503, "no_capacity", 1.0)
        assert rig.admission.books.outcomes == ["unserved", "unserved"]
        assert await is_empty(rig)


def nobody(there: Sequence[ReplicaLoad]) -> Booking:
    raise AssertionError("nobody has credit")
