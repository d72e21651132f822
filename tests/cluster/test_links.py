"""Links: who gets work, whose tokens go where, and what a broken stream costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.link import Counters, Hello, LinkDown, LinkMessage, Report, StepMessage, SubmitReply
from cluster.links import Links, TokenInbox
from engine.request import Request, RequestOutput, SamplingParams

IDLE = Counters(0, 0, 0, 100, 0, 0, 0.0, 0, 0, 0)


def hello(replica_id: str) -> Hello:
    return Hello(replica_id, 1, "tiny", "r1", b"root", 16, 512, 4, 100)


def request(request_id: str = "r") -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=8),
        hash_root=b"root",
    )


def row(request_id: str, first: int, *tokens: int, finish: str | None = None) -> RequestOutput:
    return RequestOutput(request_id, 0, 0, first, tokens, finish_reason=finish)  # type: ignore[arg-type]


class FakeReplica:
    """A `TokenLink` whose stream the test writes and whose calls it reads."""

    def __init__(self, replica_id: str) -> None:
        self.replica_id = replica_id
        self.aborted: list[str] = []
        self.reply: SubmitReply | LinkDown | asyncio.Event = SubmitReply(accepted=True)
        self.attached_again = asyncio.Event()
        self._attached = 0
        self._stream: asyncio.Queue[LinkMessage | LinkDown] = asyncio.Queue()

    async def submit(self, request: Request) -> SubmitReply:
        if isinstance(self.reply, asyncio.Event):
            await self.reply.wait()
            return SubmitReply(accepted=True)
        if isinstance(self.reply, LinkDown):
            raise self.reply
        return self.reply

    async def abort(self, request_ids: tuple[str, ...]) -> None:
        self.aborted += request_ids

    async def report(self, report: Report) -> None: ...

    async def attach(self) -> AsyncIterator[LinkMessage]:
        self._attached += 1
        if self._attached == 2:
            self.attached_again.set()
        yield hello(self.replica_id)
        while True:
            message = await self._stream.get()
            if isinstance(message, LinkDown):
                raise message
            yield message

    def say(self, *rows: RequestOutput, counters: Counters = IDLE) -> None:
        self._stream.put_nowait(StepMessage(outputs=rows, counters=counters))

    def die(self) -> None:
        self._stream.put_nowait(LinkDown("killed"))


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.discarded = 0
        self.replicas: dict[str, FakeReplica] = {}
        self.links = Links(self._connect, lambda: self.now, self._discard)

    def _connect(self, replica_id: str) -> FakeReplica:
        return self.replicas.setdefault(replica_id, FakeReplica(replica_id))

    def _discard(self, tokens: int) -> None:
        self.discarded += tokens

    def candidates(self) -> set[str]:
        return {load.replica_id for load in self.links.candidates()}


async def settle() -> None:
    """Lets everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.links.close()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.fixture
async def linked(rig: Rig) -> Rig:
    rig.links.set_replicas(frozenset({"a"}))
    await settle()
    return rig


async def submitted(rig: Rig, request_id: str = "r") -> TokenInbox:
    inbox = await rig.links.submit("a", request(request_id), 3)
    assert isinstance(inbox, TokenInbox)
    return inbox


async def test_a_replica_is_a_candidate_once_it_said_hello(rig: Rig) -> None:
    rig.links.set_replicas(frozenset({"a", "b"}))
    assert rig.candidates() == set()
    await settle()
    assert rig.candidates() == {"a", "b"}


async def test_a_silent_link_is_suspect_and_a_message_heals_it(linked: Rig) -> None:
    linked.now = 1.1
    assert linked.candidates() == set()
    linked.replicas["a"].say()
    await settle()
    assert linked.candidates() == {"a"}


async def test_tokens_reach_their_request_and_the_finish_ends_it(linked: Rig) -> None:
    first, second = await submitted(linked, "r1"), await submitted(linked, "r2")
    linked.replicas["a"].say(row("r1", 0, 5), row("r2", 0, 6, finish="length"))
    assert (await first.get()).token_ids == (5,)
    assert (await second.get()).finish_reason == "length"
    linked.replicas["a"].say(row("r2", 1, 7))
    await settle()
    assert linked.discarded == 1


async def test_indices_that_are_already_there_are_dropped(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(row("r", 0, 5, 6))
    linked.replicas["a"].say(row("r", 1, 6, 7))
    assert [(await inbox.get()).token_ids for _ in range(2)] == [(5, 6), (7,)]


async def test_a_gap_is_a_dead_link(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(row("r", 1, 6))
    with pytest.raises(LinkDown, match="tokens 0 to 0 were lost"):
        await inbox.get()
    assert linked.candidates() == set()


async def test_a_dead_stream_fails_its_requests_and_is_attached_again(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].die()
    with pytest.raises(LinkDown, match="killed"):
        await inbox.get()
    assert linked.candidates() == set()
    await linked.replicas["a"].attached_again.wait()
    await settle()
    assert linked.candidates() == {"a"}


async def test_a_refused_submit_leaves_nothing_behind(linked: Rig) -> None:
    linked.replicas["a"].reply = SubmitReply(accepted=False, code="too_long", message="no")
    assert await linked.links.submit("a", request(), 3) == linked.replicas["a"].reply
    assert linked.links.candidates()[0].in_flight_tokens == 0
    assert linked.replicas["a"].aborted == []


async def test_a_submit_of_unknown_fate_is_followed_by_an_abort(linked: Rig) -> None:
    linked.replicas["a"].reply = LinkDown("timed out")
    with pytest.raises(LinkDown):
        await linked.links.submit("a", request(), 3)
    await settle()
    assert linked.replicas["a"].aborted == ["r"]
    assert linked.links.candidates()[0].in_flight_tokens == 0


async def test_a_cancelled_submit_is_followed_by_an_abort(linked: Rig) -> None:
    linked.replicas["a"].reply = asyncio.Event()
    task = asyncio.ensure_future(linked.links.submit("a", request(), 3))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert linked.replicas["a"].aborted == ["r"]


async def test_what_was_routed_counts_until_the_replica_reports(linked: Rig) -> None:
    await submitted(linked)
    assert linked.links.candidates()[0].in_flight_tokens == 3
    linked.replicas["a"].say(counters=Counters(0, 1, 3, 100, 0, 0, 0.0, 0, 0, 0))
    await settle()
    (load,) = linked.links.candidates()
    assert (load.in_flight_tokens, load.queued_tokens, load.num_running) == (0, 3, 1)


async def test_an_abort_is_sent_once(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.links.abort(inbox)
    linked.links.abort(inbox)
    await settle()
    assert linked.replicas["a"].aborted == ["r"]


async def test_a_finished_request_is_not_aborted(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(row("r", 0, 5, finish="stop"))
    await inbox.get()
    linked.links.abort(inbox)
    await settle()
    assert linked.replicas["a"].aborted == []


async def test_a_leaving_replica_gets_no_new_work_and_finishes_what_runs(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.links.set_replicas(frozenset())
    assert linked.candidates() == set()
    linked.replicas["a"].say(row("r", 0, 5, finish="stop"))
    assert (await inbox.get()).finish_reason == "stop"
    await settle()
    assert linked.links.states() == {}


async def test_a_request_aborted_on_a_leaving_replica_does_not_keep_its_link(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.links.set_replicas(frozenset())
    await settle()
    linked.links.abort(inbox)
    await settle()
    assert linked.links.states() == {}
