"""Links: who gets work, whose tokens go where, and what a broken stream costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.link import Abort, LinkDown, LinksClosed, ReplicaLeft, SubmitReply
from cluster.links import Links
from cluster.token_inbox import TokenInbox
from engine.counters import EngineCounters
from tests.cluster.fake_replica import FakeReplica, got, request, row, settle
from tests.cluster.fake_replica import LinkRig as Rig


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
    inbox = await rig.links.submit("a", request(request_id), asyncio.Event())
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
    assert (await got(first)).token_ids == (5,)
    assert (await got(second)).finish_reason == "length"
    linked.replicas["a"].say(row("r2", 1, 7))
    await settle()
    assert linked.discarded == 1


async def test_indices_that_are_already_there_are_dropped(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(row("r", 0, 5, 6))
    assert (await got(inbox)).token_ids == (5, 6)
    linked.replicas["a"].say(row("r", 1, 6, 7))
    assert (await got(inbox)).token_ids == (7,)


async def test_a_gap_is_a_dead_link(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(row("r", 1, 6))
    with pytest.raises(LinkDown, match="tokens 0 to 0 were lost"):
        await got(inbox)
    assert linked.candidates() == set()


async def test_a_dead_stream_fails_its_requests_and_is_attached_again(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].die()
    with pytest.raises(LinkDown, match="killed"):
        await got(inbox)
    assert linked.candidates() == set()
    await linked.replicas["a"].attached_again.wait()
    await settle()
    assert linked.candidates() == {"a"}


async def test_a_refused_submit_leaves_nothing_behind(linked: Rig) -> None:
    linked.replicas["a"].reply = SubmitReply(accepted=False, code="too_long", message="no")
    assert await linked.links.submit("a", request(), asyncio.Event()) == linked.replicas["a"].reply
    assert linked.links.candidates()[0].in_flight_tokens == 0
    assert linked.replicas["a"].aborted == []


async def test_a_submit_of_unknown_fate_is_followed_by_an_abort(linked: Rig) -> None:
    linked.replicas["a"].reply = LinkDown("timed out")
    with pytest.raises(LinkDown):
        await linked.links.submit("a", request(), asyncio.Event())
    await settle()
    assert linked.replicas["a"].aborted == [Abort("r")]
    assert linked.candidates() == set()  # until it speaks again
    linked.replicas["a"].say()
    await settle()
    assert linked.links.candidates()[0].in_flight_tokens == 0


async def test_a_submit_that_is_accepted_after_its_link_broke_is_followed_by_an_abort(linked: Rig) -> None:
    """Attached anew the replica knows nothing of it when it arrives: it would run to its end for nobody."""
    replica = linked.replicas["a"]
    replica.reply = accepted = asyncio.Event()
    call = asyncio.create_task(submitted(linked))
    await settle()
    replica.die()
    await replica.attached_again.wait()
    await settle()
    accepted.set()
    with pytest.raises(LinkDown, match="the link broke while the request was on its way"):
        await call
    await settle()
    assert replica.aborted == [Abort("r")]


async def test_a_cancelled_submit_is_followed_by_an_abort(linked: Rig) -> None:
    linked.replicas["a"].reply = asyncio.Event()
    task = asyncio.ensure_future(linked.links.submit("a", request(), asyncio.Event()))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert linked.replicas["a"].aborted == [Abort("r")]


async def test_what_was_routed_counts_until_the_replica_reports(linked: Rig) -> None:
    await submitted(linked)
    assert linked.links.candidates()[0].in_flight_tokens == 3
    linked.replicas["a"].say()  # of the step that ran when the request came: it does not hold it yet
    await settle()
    assert linked.links.candidates()[0].in_flight_tokens == 3
    linked.replicas["a"].say(counters=EngineCounters(0, 1, 3, 100, 0, 0, 0.0, 0, 0, 0))
    await settle()
    (load,) = linked.links.candidates()
    assert (load.in_flight_tokens, load.queued_tokens, load.num_running) == (0, 3, 1)


async def test_an_abort_is_sent_once(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.links.abort(inbox)
    linked.links.abort(inbox)
    await settle()
    assert linked.replicas["a"].aborted == [Abort("r")]


async def test_a_finished_request_is_not_aborted(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(row("r", 0, 5, finish="stop"))
    await got(inbox)
    linked.links.abort(inbox)
    await settle()
    assert linked.replicas["a"].aborted == []


async def test_a_leaving_replica_gets_no_new_work_and_finishes_what_runs(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.links.set_replicas(frozenset())
    assert linked.candidates() == set()
    linked.replicas["a"].say(row("r", 0, 5, finish="stop"))
    assert (await got(inbox)).finish_reason == "stop"
    await settle()
    assert linked.links.states() == {}


async def test_a_request_aborted_on_a_leaving_replica_does_not_keep_its_link(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.links.set_replicas(frozenset())
    await settle()
    linked.links.abort(inbox)
    await settle()
    assert linked.links.states() == {}


async def test_a_replica_that_says_that_it_leaves_is_treated_like_one(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(is_leaving=True)
    await settle()
    assert linked.candidates() == set()
    linked.replicas["a"].say(row("r", 0, 5, finish="stop"), is_leaving=True)
    assert (await got(inbox)).finish_reason == "stop"


@pytest.mark.parametrize("says_so", [False, True])
async def test_what_outlasts_the_drain_limit_is_told_to_go_on_elsewhere(linked: Rig, says_so: bool) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].say(row("r", 0, 5))
    assert (await got(inbox)).token_ids == (5,)
    if says_so:
        linked.replicas["a"].say(is_leaving=True)
    else:
        linked.links.set_replicas(frozenset())
    with pytest.raises(ReplicaLeft):
        await got(inbox)
    await settle()
    told = (linked.replicas["a"].aborted, linked.left)  # who is not listed cannot be called
    assert told == (([Abort("r")], []) if says_so else ([], [(ord("a"), Abort("r"))]))
    assert (linked.links.states() == {}) is not says_so  # its stream is closed once it is not listed


async def test_an_abort_that_cannot_be_sent_is_left_for_the_incarnation(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].is_unreachable = True
    linked.links.abort(inbox)
    await settle()
    assert linked.left == [(ord("a"), Abort("r"))]


async def test_readers_are_woken_at_once_and_then_no_more_often_than_told() -> None:
    replica = FakeReplica("a")
    links = Links(lambda _: replica, lambda: 0.0, coalesce_s=0.05)
    links.set_replicas(frozenset({"a"}))
    await settle()
    wake = asyncio.Event()
    inbox = await links.submit("a", request(), wake)
    assert isinstance(inbox, TokenInbox)
    replica.say(row("r", 0, 5))
    await settle()
    assert wake.is_set()
    wake.clear()
    inbox.take()
    replica.say(row("r", 1, 6))
    replica.say(row("r", 2, 7, finish="stop"))
    await settle()
    assert not wake.is_set()
    await wake.wait()
    output = inbox.take()
    assert output is not None
    assert (output.token_ids, output.finish_reason) == ((6, 7), "stop")
    await links.close()


async def test_arrival_is_when_a_replica_can_work_that_could_not(rig: Rig) -> None:
    waiting = asyncio.ensure_future(rig.links.arrival())
    await settle()
    assert not waiting.done()
    rig.links.set_replicas(frozenset({"a"}))
    await waiting
    again = asyncio.ensure_future(rig.links.arrival())
    rig.replicas["a"].say()
    await settle()
    assert not again.done()  # it could all the while
    rig.now = 1.1
    rig.replicas["a"].say()
    await again


async def test_an_arrival_between_asking_and_waiting_is_not_missed(rig: Rig) -> None:
    arrival = rig.links.arrival()
    rig.links.set_replicas(frozenset({"a"}))
    await settle()
    async with asyncio.timeout(5):
        await arrival
    assert rig.candidates() == {"a"}


async def test_closed_links_stay_closed_and_whoever_waits_for_a_replica_hears_of_it(linked: Rig) -> None:
    inbox = await submitted(linked)
    arrival = linked.links.arrival()
    await linked.links.close()
    await arrival
    with pytest.raises(LinksClosed):
        inbox.take()
    linked.links.set_replicas(frozenset({"a", "b"}))
    await settle()
    assert linked.candidates() == set()


async def test_any_fault_of_a_stream_is_a_dead_link_that_is_attached_again(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.replicas["a"].fail(RuntimeError("planted"))
    with pytest.raises(LinkDown, match="RuntimeError"):
        await got(inbox)
    await linked.replicas["a"].attached_again.wait()
    await settle()
    assert linked.candidates() == {"a"}


async def test_a_replica_that_is_listed_again_while_it_leaves_is_linked_again(linked: Rig) -> None:
    inbox = await submitted(linked)
    linked.links.set_replicas(frozenset())
    linked.links.set_replicas(frozenset({"a"}))
    linked.replicas["a"].say(row("r", 0, 5, finish="stop"))
    await got(inbox)
    await linked.replicas["a"].attached_again.wait()
    await settle()
    assert linked.candidates() == {"a"}


class TestSiblings:
    @pytest.fixture
    async def inbox(self, linked: Rig) -> TokenInbox:
        inbox = await linked.links.submit("a", request(n=2), asyncio.Event())
        assert isinstance(inbox, TokenInbox)
        return inbox

    async def test_one_is_ended_alone_and_its_later_tokens_are_counted_as_discarded(
        self, linked: Rig, inbox: TokenInbox
    ) -> None:
        linked.replicas["a"].say(row("r", 0, 5), row("r", 0, 6, sibling=1))
        await settle()
        linked.links.abort(inbox, 0)
        linked.links.abort(inbox, 0)
        linked.replicas["a"].say(row("r", 1, 7, 8), row("r", 1, 9, sibling=1))
        linked.replicas["a"].say(row("r", 3, finish="abort"))
        await settle()
        assert linked.replicas["a"].aborted == [Abort("r", 0)]
        assert linked.discarded == 3
        assert (await got(inbox)).token_ids == (6, 9)

    async def test_one_that_ended_by_itself_is_not_aborted(self, linked: Rig, inbox: TokenInbox) -> None:
        linked.replicas["a"].say(row("r", 0, 5, sibling=1, finish="stop"))
        await settle()
        linked.links.abort(inbox, 1)
        await settle()
        assert linked.replicas["a"].aborted == []

    async def test_the_rest_of_a_request_is_aborted_as_a_whole(self, linked: Rig, inbox: TokenInbox) -> None:
        linked.replicas["a"].say(row("r", 0, 5, sibling=1, finish="stop"))
        await settle()
        linked.links.abort(inbox)
        linked.links.abort(inbox)
        await settle()
        assert linked.replicas["a"].aborted == [Abort("r")]

    @pytest.mark.parametrize("is_aborted", [False, True])
    async def test_the_last_one_s_end_is_the_request_s(
        self, linked: Rig, inbox: TokenInbox, is_aborted: bool
    ) -> None:
        linked.links.set_replicas(frozenset())  # its link stays while the request is there
        linked.replicas["a"].say(row("r", 0, 5, finish="stop"))
        await settle()
        assert linked.links.states() != {}
        if is_aborted:
            linked.links.abort(inbox, 1)
        else:
            linked.replicas["a"].say(row("r", 0, 5, sibling=1, finish="stop"))
        await settle()
        assert linked.links.states() == {}
