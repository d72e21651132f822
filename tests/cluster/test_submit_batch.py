"""Requests of one turn share a call to their replica, and nothing else: each has its own reply and end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar

import pytest

from cluster.link import LinkDown, SubmitReply
from cluster.submit_batch import MAX_REQUESTS, SubmitBatch
from engine.request import Request
from tests.cluster.fake_replica import request

WHOSE: ContextVar[str] = ContextVar("WHOSE", default="nobody's")


class Calls:
    """Keeps what each call held. A reply's message is its request's id. Closed, no call comes back."""

    def __init__(self) -> None:
        self.held: list[list[str]] = []
        self.whose: list[str] = []
        self.fails_with: Exception | None = None
        self._is_open = asyncio.Event()
        self._is_open.set()

    def close(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    async def __call__(self, requests: tuple[Request, ...]) -> Sequence[SubmitReply]:
        self.held.append([one.request_id for one in requests])
        self.whose.append(WHOSE.get())
        await self._is_open.wait()
        if self.fails_with is not None:
            raise self.fails_with
        return [said(one.request_id) for one in requests]


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def batch(calls: Calls) -> SubmitBatch:
    return SubmitBatch(calls)


def said(request_id: str) -> SubmitReply:
    return SubmitReply(accepted=True, message=request_id)


def begun(batch: SubmitBatch, request_id: str) -> asyncio.Task[SubmitReply]:
    return asyncio.create_task(batch.submit(request(request_id)))


async def on_their_way(calls: Calls, num: int) -> None:
    """Until so many calls were made."""
    async with asyncio.timeout(10):
        while len(calls.held) < num:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0)


async def told(*submits: Awaitable[SubmitReply]) -> list[SubmitReply | BaseException]:
    """What each of them heard, which takes none of them long."""
    async with asyncio.timeout(10):
        return await asyncio.gather(*submits, return_exceptions=True)


async def test_those_of_one_turn_are_one_call_and_each_has_its_own_reply(
    batch: SubmitBatch, calls: Calls
) -> None:
    assert await told(*(batch.submit(request(one)) for one in "abc")) == [said(one) for one in "abc"]
    assert calls.held == [["a", "b", "c"]]


async def test_one_alone_leaves_alone_and_does_not_wait_for_the_call_before_it(
    batch: SubmitBatch, calls: Calls
) -> None:
    calls.close()
    first = begun(batch, "a")
    await on_their_way(calls, 1)
    second = begun(batch, "b")
    await on_their_way(calls, 2)
    calls.open()
    assert await told(first, second) == [said("a"), said("b")]
    assert calls.held == [["a"], ["b"]]


async def test_very_many_are_several_calls(batch: SubmitBatch, calls: Calls) -> None:
    ids = [f"r{number}" for number in range(2 * MAX_REQUESTS + 1)]
    assert await told(*(batch.submit(request(one)) for one in ids)) == [said(one) for one in ids]
    assert [len(held) for held in calls.held] == [MAX_REQUESTS, MAX_REQUESTS, 1]


async def test_of_one_that_left_before_the_call_nothing_is_sent(batch: SubmitBatch, calls: Calls) -> None:
    leaves, stays = begun(batch, "a"), begun(batch, "b")
    await asyncio.sleep(0)
    leaves.cancel()
    assert await told(stays) == [said("b")]
    assert (leaves.cancelled(), calls.held) == (True, [["b"]])


@pytest.mark.parametrize("error", [None, LinkDown("gone")], ids=["answered", "lost"])
async def test_one_that_leaves_on_the_way_takes_nobody_along(
    batch: SubmitBatch, calls: Calls, error: Exception | None
) -> None:
    calls.fails_with = error
    calls.close()
    leaves, stays = begun(batch, "a"), begun(batch, "b")
    await on_their_way(calls, 1)
    leaves.cancel()
    await told(leaves)
    calls.open()
    assert await told(stays) == [error or said("b")]
    assert leaves.cancelled()


async def test_a_lost_call_is_told_to_all_of_it_and_the_next_one_is_made(
    batch: SubmitBatch, calls: Calls
) -> None:
    calls.fails_with = LinkDown("gone")
    assert await told(batch.submit(request("a")), batch.submit(request("b"))) == [calls.fails_with] * 2
    calls.fails_with = None
    assert await told(batch.submit(request("c"))) == [said("c")]


async def test_a_call_is_nobodys_so_that_no_client_that_leaves_ends_it(
    batch: SubmitBatch, calls: Calls
) -> None:
    """Serve keeps in a context variable whose call it is, and ends a request's calls with the request."""
    WHOSE.set("the first one's")
    await batch.submit(request())
    assert calls.whose == ["nobody's"]


async def test_a_call_that_is_given_up_leaves_nobody_waiting() -> None:
    async def give_up(requests: tuple[Request, ...]) -> Sequence[SubmitReply]:
        raise asyncio.CancelledError

    with pytest.raises(LinkDown):
        async with asyncio.timeout(5):
            await SubmitBatch(give_up).submit(request("a"))
