"""Credit over links: what is sent counts until the replica is done with it, and nothing leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.backlog import Backlog
from cluster.credit import NO_CREDIT, Credit, Wanted
from cluster.link import Abort, LinkDown, Report, SubmitReply
from cluster.served_elsewhere import FlowService
from cluster.token_inbox import TokenInbox
from tests.cluster.fake_replica import LinkRig as Rig
from tests.cluster.fake_replica import request, row, settle

ONE = Credit(100, 1)
"""Room for one request."""
LONG = 33
"""Tokens: more than half of a step of the fake's 64."""


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    rig.replica("a").is_open = False
    rig.links.set_replicas(frozenset({"a"}))
    await settle()
    yield rig
    await rig.links.close()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def grant(rig: Rig, credit: Credit | None = ONE) -> None:
    rig.replicas["a"].say(credit=credit)
    await settle()


async def submitted(rig: Rig, request_id: str = "r", tokens: int = 3, n: int = 1) -> TokenInbox:
    inbox = await rig.links.submit("a", request(request_id, n, tokens), asyncio.Event())
    assert isinstance(inbox, TokenInbox)
    return inbox


async def test_nothing_may_be_sent_before_the_replica_has_granted_something(rig: Rig) -> None:
    assert rig.candidates() == {"a"}
    assert rig.with_credit() == set()
    await grant(rig)
    assert rig.with_credit() == {"a"}


async def test_what_is_submitted_counts_at_once_and_bears_the_number_that_counts(rig: Rig) -> None:
    await grant(rig)
    rig.replicas["a"].reply = asyncio.Event()
    call = asyncio.ensure_future(submitted(rig, tokens=7))
    await settle()
    assert rig.with_credit() == set()
    assert rig.replicas["a"].submitted[0].num_uncached_tokens == 7
    rig.replicas["a"].reply.set()
    await call


async def test_credit_is_not_asked_for_a_resumption_takes_it_below_nothing(rig: Rig) -> None:
    await grant(rig)
    for name in ("r1", "r2", "r3"):
        await submitted(rig, name)
    for name in ("r1", "r2"):
        rig.replicas["a"].say(row(name, 0, 5, finish="stop"), credit=ONE)
    await settle()
    assert rig.with_credit() == set()
    rig.replicas["a"].say(row("r3", 0, 5, finish="stop"), credit=ONE)
    await settle()
    assert rig.with_credit() == {"a"}


async def test_prompts_count_until_they_are_computed(rig: Rig) -> None:
    await grant(rig, Credit(10, 5))
    await submitted(rig, tokens=16)  # what is kept for first prompts, too: a quarter of a step
    assert rig.with_credit() == set()
    rig.replicas["a"].say(row("r", 0, 5), credit=Credit(10, 5))
    await settle()
    assert rig.with_credit() == {"a"}


async def test_a_short_prompt_goes_where_a_long_one_has_to_wait(rig: Rig) -> None:
    await grant(rig, Credit(64, 5))
    await submitted(rig, tokens=1000)
    assert (rig.with_credit(Wanted(LONG)), rig.with_credit(Wanted(LONG - 1))) == (set(), {"a"})


async def test_a_replica_that_tells_no_window_has_no_limit(rig: Rig) -> None:
    await grant(rig, None)
    for number in range(50):
        await submitted(rig, f"r{number}")
    assert rig.with_credit() == {"a"}


async def test_a_silent_replica_gets_nothing_whatever_its_credit(rig: Rig) -> None:
    await grant(rig)
    rig.now = 1.1
    assert rig.with_credit() == set()


@pytest.mark.parametrize("code", ["too_long", "leaving", "occupied"])
async def test_a_refused_submit_counts_no_more_and_who_waits_is_told(rig: Rig, code: str) -> None:
    await grant(rig)
    rig.replicas["a"].reply = SubmitReply(accepted=False, code=code)
    before = rig.num_credit_calls
    await rig.links.submit("a", request(), asyncio.Event())
    assert rig.with_credit() == {"a"}
    assert rig.num_credit_calls == before + 1


async def test_a_request_that_the_engine_refuses_after_all_counts_no_more(rig: Rig) -> None:
    await grant(rig)
    await submitted(rig, n=2)
    rows = [row("r", 0, sibling=sibling, finish="error") for sibling in range(2)]
    rig.replicas["a"].say(*rows, credit=ONE)
    await settle()
    assert rig.with_credit() == {"a"}


async def test_a_submit_of_unknown_fate_counts_until_the_replica_knows_that_nobody_wants_it(
    rig: Rig,
) -> None:
    await grant(rig)
    rig.replicas["a"].reply = LinkDown("timed out")
    with pytest.raises(LinkDown):
        await submitted(rig)
    await grant(rig)
    assert rig.replicas["a"].aborted == [Abort("r")]
    assert rig.with_credit() == {"a"}


async def test_a_cancelled_submit_counts_no_more(rig: Rig) -> None:
    await grant(rig)
    rig.replicas["a"].reply = asyncio.Event()
    call = asyncio.ensure_future(submitted(rig))
    await settle()
    call.cancel()
    await settle()
    assert rig.with_credit() == {"a"}


async def test_an_aborted_request_counts_until_the_replica_tells_its_end(rig: Rig) -> None:
    await grant(rig)
    inbox = await submitted(rig)
    rig.links.abort(inbox)
    await settle()
    assert rig.with_credit() == set()
    rig.replicas["a"].say(row("r", 0, finish="abort"), credit=ONE)
    await settle()
    assert rig.with_credit() == {"a"}


async def test_a_link_that_breaks_takes_credit_and_counts_along(rig: Rig) -> None:
    await grant(rig)
    await submitted(rig)
    rig.replicas["a"].die()
    await rig.replicas["a"].attached_again.wait()
    await settle()
    assert rig.candidates() == {"a"}
    assert rig.with_credit() == set()
    await grant(rig)
    assert rig.with_credit() == {"a"}


async def test_whoever_waits_is_told_when_there_is_more_credit_and_not_for_each_message(rig: Rig) -> None:
    await grant(rig)
    before = rig.num_credit_calls
    await grant(rig)
    await grant(rig, NO_CREDIT)
    assert rig.num_credit_calls == before
    await grant(rig)
    assert rig.num_credit_calls == before + 1
    await submitted(rig)
    rig.replicas["a"].say(row("r", 0, 5), credit=ONE)
    rig.replicas["a"].say(row("r", 1, 6), credit=ONE)
    rig.replicas["a"].say(row("r", 2, 7, finish="stop"), credit=ONE)
    await settle()
    assert rig.num_credit_calls == before + 3


async def test_whoever_waits_is_told_when_a_silent_replica_speaks_again(rig: Rig) -> None:
    await grant(rig)
    before, rig.now = rig.num_credit_calls, 1.1
    await grant(rig)
    assert rig.num_credit_calls == before + 1


async def test_what_others_got_is_passed_on(rig: Rig) -> None:
    rig.replicas["a"].say(served=(FlowService("acme", 12.5),))
    rig.replicas["a"].say()
    await settle()
    assert rig.served == [(FlowService("acme", 12.5),)]


class TestReports:
    BACKLOG = (Backlog("acme", 500, 2, 4), Backlog("free", 10, 1))

    async def test_reach_every_replica_that_is_there(self, rig: Rig) -> None:
        rig.links.set_replicas(frozenset({"a", "b"}))
        await settle()
        rig.links.report(self.BACKLOG)
        await settle()
        assert [rig.replicas[name].reports for name in "ab"] == [[Report(self.BACKLOG)]] * 2

    async def test_reach_one_that_comes_later(self, rig: Rig) -> None:
        rig.links.report(self.BACKLOG)
        rig.links.set_replicas(frozenset({"a", "b"}))
        await settle()
        assert rig.replicas["b"].reports == [Report(self.BACKLOG)]

    async def test_that_were_lost_are_sent_again(self, rig: Rig) -> None:
        rig.replicas["a"].is_unreachable = True
        rig.links.report(self.BACKLOG)
        await settle()
        rig.replicas["a"].is_unreachable = False
        async with asyncio.timeout(5):
            assert await rig.replicas["a"].heard.get() == Report(self.BACKLOG)

    async def test_leave_one_after_another_so_that_none_is_overtaken(self, rig: Rig) -> None:
        replica, less = rig.replicas["a"], Report(self.BACKLOG[:1])
        replica.may_hear = asyncio.Event()
        rig.links.set_replicas(frozenset({"a", "b"}))
        await settle()
        rig.links.report(self.BACKLOG)
        rig.links.report(less.backlogs)
        async with asyncio.timeout(5):
            while await rig.replicas["b"].heard.get() != less:
                pass
        assert (replica.num_reports_on_their_way, replica.reports) == (1, [])
        replica.may_hear.set()
        await settle()
        assert replica.reports == [Report(self.BACKLOG), less]

    async def test_that_outlive_their_stream_are_put_right_on_the_next(self, rig: Rig) -> None:
        """It reaches the replica after the new hello, when there is nothing to tell any more."""
        replica = rig.replicas["a"]
        replica.may_hear = asyncio.Event()
        rig.links.report(self.BACKLOG)
        await settle()
        replica.die()
        await replica.attached_again.wait()
        await settle()
        rig.links.report(())
        replica.may_hear.set()
        async with asyncio.timeout(5):
            assert [await replica.heard.get() for _ in range(2)] == [Report(self.BACKLOG), Report(())]

    async def test_one_that_cannot_be_called_costs_nothing(self, rig: Rig) -> None:
        rig.replicas["a"].is_unreachable = True
        rig.links.report(self.BACKLOG)
        await settle()
        assert rig.candidates() == {"a"}
