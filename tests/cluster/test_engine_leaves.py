"""An engine that is to end: it says so, takes nothing more, and knows when all it had is done."""

from __future__ import annotations

import asyncio

import pytest

from cluster.engine_host import EngineHost
from cluster.link import LEAVING, StepMessage
from tests.builders import EOS, make_request
from tests.cluster.test_engine_host import ANSWER, Rig, rig, tokens, until

__all__ = ["rig"]  # a fixture


async def test_gateways_hear_of_it_at_once_and_in_every_message_since(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await rig.attach("g")
    rig.host.leave()
    for heartbeat_s in (60.0, 0.0):  # the news, which waits for none, then a heartbeat
        monkeypatch.setattr("cluster.gateway_streams.HEARTBEAT_S", heartbeat_s)
        message = await stream.next()
        assert isinstance(message, StepMessage)
        assert message.is_leaving


async def test_new_requests_are_refused_and_those_before_finish(rig: Rig) -> None:
    stream = await rig.attach("g")
    rig.host.submit("g", make_request("before"))
    rig.host.leave()
    reply = rig.host.submit("g", make_request("after"))
    assert (reply.accepted, reply.code) == (False, LEAVING)
    rig.tape.open(1)
    await until(lambda: rig.tape.num_waiting == 2)  # all that was in the mailbox is taken in
    assert not rig.host.has_finished
    rig.tape.open()
    assert tokens(await stream.outputs("before")) == (*ANSWER, EOS)
    assert not rig.host.has_finished  # the gateway closes once it has read the end
    await stream.close()
    await until(lambda: rig.host.has_finished)


async def test_what_was_accepted_and_is_not_taken_in_yet_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    start = EngineHost.start
    monkeypatch.setattr(EngineHost, "start", lambda *arguments: None)
    rig = Rig()
    rig.tape.open()
    stream = await rig.attach("g")
    rig.host.submit("g", make_request())
    rig.host.leave()
    assert not rig.host.has_finished
    start(rig.host, asyncio.get_running_loop(), rig.thread)
    await stream.close()
    await until(lambda: rig.host.has_finished)
    rig.host.stop()
    rig.thread.shutdown()


async def test_without_work_it_has_finished_at_once(rig: Rig) -> None:
    assert not rig.host.has_finished
    rig.host.leave()
    await until(lambda: rig.host.has_finished)
