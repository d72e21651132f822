"""Frames on their way: nothing lost, nothing after the end, unsent bytes counted until they are sent."""

from __future__ import annotations

import asyncio

from cluster.api.errors import internal_error
from cluster.api.outbox import Outbox
from tests.cluster.fakes import settle


async def test_frames_that_wait_go_out_as_one_and_then_the_end_comes() -> None:
    outbox = Outbox(100)
    outbox.put(b"a")
    outbox.put(b"b")
    assert await outbox.take() == b"ab"
    outbox.put(b"c")
    outbox.close()
    outbox.put(b"too late")
    assert [await outbox.take(), await outbox.take(), await outbox.take()] == [b"c", None, None]
    assert outbox.error is None


async def test_who_takes_waits_for_a_frame_or_the_end() -> None:
    outbox = Outbox(100)
    for give in (lambda: outbox.put(b"a"), outbox.close):
        taking = asyncio.ensure_future(outbox.take())
        await settle()
        assert not taking.done()
        give()
        await taking


async def test_the_first_word_about_the_end_counts() -> None:
    outbox = Outbox(100)
    error = internal_error()
    outbox.close(error)
    outbox.close()
    assert outbox.error is error
    outbox = Outbox(100)
    outbox.close()
    outbox.close(error)
    assert outbox.error is None


async def test_bytes_are_unsent_until_they_are_said_to_be_sent() -> None:
    outbox = Outbox(10)
    outbox.put(b"x" * 10)
    assert outbox.has_room
    outbox.put(b"y")
    assert not outbox.has_room
    assert await outbox.take() == b"x" * 10 + b"y"
    assert not outbox.has_room
    waiting = asyncio.ensure_future(outbox.wait_for_room())
    await settle()
    assert not waiting.done()
    outbox.sent(11)
    await waiting
    assert outbox.has_room
