"""Random histories of a gateway: every request ends once, and at the end nothing is held, booked or owed.

Clients come and leave, replicas grant, answer, refuse, fall silent and die, tenants are frozen, time passes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.errors import ApiError
from cluster.credit import Credit
from cluster.link import LinkDown, NotReached, SubmitReply
from cluster.waiting.config import WaitingConfig
from engine.request import Request, RequestOutput
from tenants.ledger.settlement import Outcome
from tenants.terms import ServiceClass
from tests.cluster.fake_replica import FakeReplica, row, settle
from tests.cluster.generator_rig import Frozen, Rig, account_of, read

CONFIG = WaitingConfig(max_waiting=6, max_held=3)
REPLIES = {
    "accepts": SubmitReply(accepted=True),
    "leaves": SubmitReply(False, "leaving"),
    "cannot be reached": NotReached("gone"),
    "dies in it": LinkDown("killed"),
}


class Come(NamedTuple):
    tenant_id: str
    service_class: ServiceClass
    num_tokens: int
    n: int
    max_queue_len: int | None
    timeout_s: float


class Leave(NamedTuple):
    which: int


class Grant(NamedTuple):
    which: int
    """Of the replicas."""
    window: Credit


class Answer(NamedTuple):
    which: int


class Reply(NamedTuple):
    which: int
    reply: str


class Die(NamedTuple):
    """Another replica comes in its place."""

    which: int


class Pass(NamedTuple):
    seconds: float


class Freeze(NamedTuple):
    """Every tenant; it may ask again at once."""


Deed = Come | Leave | Grant | Answer | Reply | Die | Pass | Freeze


def deeds() -> st.SearchStrategy[list[Deed]]:
    which = st.integers(0, 7)
    come = st.builds(
        Come,
        st.sampled_from(["acme", "other", "free"]),
        st.sampled_from(["interactive", "interactive", "batch"]),
        st.sampled_from([1, 40, 300]),
        st.sampled_from([1, 1, 3]),
        st.sampled_from([None, None, 2]),
        st.sampled_from([5.0, 100.0]),
    )
    window = st.builds(Credit, st.sampled_from([0, 64, 128]), st.integers(0, 6))
    others = (
        st.builds(Leave, which),
        st.builds(Grant, which, window),
        st.builds(Answer, which),
        st.builds(Reply, which, st.sampled_from(sorted(REPLIES))),
        st.builds(Die, which),
        st.builds(Pass, st.sampled_from([0.05, 0.9, 4.0])),
        st.builds(Freeze),
    )
    return st.lists(st.one_of(come, come, come, *others, st.builds(Answer, which)), min_size=30, max_size=60)


class FrozenAgain(Frozen):
    """At each look."""

    def __init__(self) -> None:
        self._num_changes = 0

    async def change_count(self) -> int:
        self._num_changes += 1
        return self._num_changes


class History:
    """A gateway, two replicas at any time, and every client that ever came."""

    def __init__(self) -> None:
        self.rig = Rig(CONFIG)
        self.calls: list[asyncio.Task[str]] = []
        self._record = FrozenAgain()
        self.there: list[str] = []
        self._num_begun = 0
        self._heard: dict[str, list[str]] = {}
        """By replica: submissions whose end was told."""

    async def open(self) -> None:
        for _ in range(2):
            self._begin()
        await self._list()

    def _begin(self) -> None:
        self._num_begun += 1
        name = chr(ord("a") + self._num_begun)
        self.rig.replica(name).is_open = False
        self.there.append(name)
        self._heard[name] = []

    async def _list(self) -> None:
        await self.rig.open(*self.there)

    def _replica(self, which: int) -> FakeReplica:
        return self.rig.replicas[self.there[which % len(self.there)]]

    async def do(self, deed: Deed) -> None:
        match deed:
            case Come():
                self.calls.append(asyncio.ensure_future(self._call(f"r{len(self.calls)}", deed)))
            case Leave(which):
                if self.calls:
                    self.calls[which % len(self.calls)].cancel()
            case Grant(which, window):
                self._replica(which).say(credit=window)
            case Answer(which):
                self._answer(self._replica(which))
            case Reply(which, reply):
                self._replica(which).reply = REPLIES[reply]
            case Die(which):
                await self._die(which)
            case Pass(seconds):
                self.rig.now += seconds
                await self.rig.dispatching.room.look()
            case Freeze():
                await self.rig.running.check(self._record)
        await settle()

    async def _call(self, request_id: str, asked: Come) -> str:
        """What became of it; as the API does it."""
        try:
            generation = await self.rig.start(
                request_id,
                account=account_of(asked.tenant_id, max_queue_len=asked.max_queue_len),
                prompt_token_ids=tuple(range(asked.num_tokens)),
                service_class=asked.service_class,
                n=asked.n,
                arrived=self.rig.now,
                deadline=self.rig.now + asked.timeout_s,
            )
        except ApiError as error:
            return error.code
        outcome: Outcome = "left"
        try:
            await read(generation)
            outcome = "finished"
        except ApiError as error:
            return error.code
        finally:
            generation.end(outcome)
        return outcome

    def _answer(self, replica: FakeReplica) -> None:
        """The oldest that runs there, all its siblings at once; of those that were aborted, their end."""
        heard = self._heard[replica.replica_id]
        for request in replica.submitted:
            if request.request_id not in heard:
                heard.append(request.request_id)
                replica.say(*_rows(request), credit=Credit(64, 2))
                return

    async def _die(self, which: int) -> None:
        replica = self._replica(which)
        replica.die()
        await settle()
        self.there.remove(replica.replica_id)
        self._begin()
        await self._list()

    async def end(self) -> None:
        """Replicas answer all that is left."""
        for _ in range(200):
            if all(call.done() for call in self.calls):
                break
            for which in range(2):
                self._replica(which).reply = REPLIES["accepts"]
                self._replica(which).say(credit=Credit(1000, 10))
                self._answer(self._replica(which))
            await settle()
        for which in range(2):
            for _ in self._replica(which).submitted:
                self._answer(self._replica(which))
        await settle()


def _rows(request: Request) -> list[RequestOutput]:
    siblings = range(request.sibling, request.sibling + request.n)
    first = len(request.output_token_ids)
    return [row(request.request_id, first, 65, sibling=sibling, finish="stop") for sibling in siblings]


async def run(history: list[Deed]) -> None:
    world = History()
    await world.open()
    rig, room = world.rig, world.rig.dispatching.room
    for deed in history:
        await world.do(deed)
        assert len(room) == len(rig.dispatching.queue) <= CONFIG.max_waiting
    await world.end()
    assert all(call.done() for call in world.calls)
    settled = Counter(settlement.request_id for settlement in rig.admission.books.settlements)
    assert settled == Counter(one.request_id for one in rig.admission.books.opened)
    assert set(settled.values()) <= {1}
    assert (len(room), len(rig.dispatching.queue), rig.running.num_requests) == (0, 0, 0)
    for name in world.there * 2:  # what was routed counts until the second message
        rig.replicas[name].say(credit=Credit(1, 1))
    await settle()
    assert rig.with_credit() == set(world.there), "a window of one request is free everywhere"
    assert [load.in_flight_tokens for load in rig.links.candidates()] == [0, 0]
    await rig.links.close()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@given(deeds())
@settings(max_examples=60)
def test_every_request_ends_once_and_nothing_stays_behind(history: list[Deed]) -> None:
    asyncio.run(run(history))


@pytest.mark.soak
@given(deeds())
@settings(max_examples=2000)
def test_so_it_is_in_many_more_histories(history: list[Deed]) -> None:
    asyncio.run(run(history))
