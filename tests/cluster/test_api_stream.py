"""How streams begin, pause, fail and end: one terminal event always, and nobody generates for nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.api.pace import Timings
from cluster.generation import TextDelta
from engine.tokenizer import ByteTokenizer
from tests.builders_tenants import BY, switched_off
from tests.cluster.fakes import Call, FakeGateway, Gate, say, settle

TEXT = "/v1/completions"
KEEP_ALIVE = ": keep-alive"
BROKEN = ApiError(500, "replica_lost", "The replica was lost.")


def begin(gateway: FakeGateway, *, stream: bool = True, **request: Any) -> Call:
    return gateway.begin("POST", TEXT, body={"model": "tiny", "prompt": "hello", "stream": stream}, **request)


def texts(call: Call) -> list[str]:
    return [
        e["choices"][0]["text"] if isinstance(e, dict) and "choices" in e else str(e) for e in call.events
    ]


class TestCommit:
    async def test_it_comes_with_the_first_text(self, gateway: FakeGateway) -> None:
        gate, more = Gate(), Gate()
        gateway.generator.script = [gate, TextDelta(""), TextDelta("a"), more, *say("b")]
        call = begin(gateway)
        await gateway.time.advance(11)
        assert not call.is_committed
        gate.open()
        await settle()
        assert texts(call) == ["a"]
        more.open()
        await call.finished()

    @pytest.mark.parametrize("is_started", [True, False])
    async def test_or_after_twelve_seconds_of_waiting_wherever_it_waits(
        self, gateway: FakeGateway, is_started: bool
    ) -> None:
        gate = Gate()
        if is_started:
            gateway.generator.script = [gate, *say("a")]
        else:
            gateway.generator.before, gateway.generator.script = [gate], say("a")
        call = begin(gateway)
        await gateway.time.advance(11.9)
        assert not call.is_committed
        await gateway.time.advance(0.1)
        assert (call.status, call.events) == (200, [KEEP_ALIVE])
        assert ("x-headrace-replica" in call.headers) == is_started
        gate.open()
        assert texts(await call.finished()) == [KEEP_ALIVE, "a", "", "[DONE]"]

    async def test_then_silence_is_broken_every_ten_seconds(self, gateway: FakeGateway) -> None:
        gate = Gate()
        gateway.generator.script = [TextDelta("a"), gate, *say("b")]
        call = begin(gateway)
        await gateway.time.advance(9.9)
        assert texts(call) == ["a"]
        await gateway.time.advance(0.1)
        assert texts(call) == ["a", KEEP_ALIVE]
        await gateway.time.advance(20)
        assert texts(call) == ["a", KEEP_ALIVE, KEEP_ALIVE, KEEP_ALIVE]
        gate.open()
        assert texts(await call.finished())[-3:] == ["b", "", "[DONE]"]


class TestErrors:
    async def test_before_the_first_byte_it_is_a_status(self, gateway: FakeGateway) -> None:
        gateway.generator.script = [TextDelta(""), BROKEN]
        call = await begin(gateway).finished()
        assert (call.status, call.error["code"]) == (500, "replica_lost")

    @pytest.mark.parametrize(
        "last", [BROKEN, RuntimeError("secret prompt"), TextDelta("b", "error"), TextDelta("", "abort")]
    )
    async def test_after_it_one_event_and_the_end(self, gateway: FakeGateway, last: Any) -> None:
        gateway.generator.script = [TextDelta("a"), last]
        call = await begin(gateway).finished()
        assert call.status == 200
        assert call.is_complete
        first, error = call.events
        assert first["choices"][0]["text"] == "a"
        assert error["error"].keys() == {"message", "type", "param", "code"}
        assert b"secret prompt" not in call.body

    async def test_after_a_commit_by_waiting_too(self, gateway: FakeGateway) -> None:
        gate = Gate()
        gateway.generator.before = [gate, BROKEN]
        call = begin(gateway)
        await gateway.time.advance(12)
        gate.open()
        await call.finished()
        assert call.events[0] == KEEP_ALIVE
        assert call.events[1]["error"]["code"] == "replica_lost"
        assert len(call.events) == 2

    async def test_deltas_that_end_without_a_reason_are_an_error(self, gateway: FakeGateway) -> None:
        gateway.generator.script = [TextDelta("a")]
        call = await begin(gateway).finished()
        assert call.events[-1]["error"]["code"] == "generation_failed"
        call = await begin(gateway, stream=False).finished()
        assert (call.status, call.error["code"]) == (500, "generation_failed")

    async def test_an_unexpected_one_is_logged_without_its_words(
        self, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        gateway.generator.script = [RuntimeError("secret prompt")]
        for stream in (True, False):
            call = await begin(gateway, stream=stream).finished()
            assert (call.status, call.error["code"]) == (500, "internal_error")
            assert f"unexpected RuntimeError, request {gateway.generator.last.request_id}" in caplog.text
        assert "secret" not in caplog.text


class TestDeadline:
    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("is_started", [True, False])
    async def test_before_the_headers_it_is_503(
        self, gateway: FakeGateway, stream: bool, is_started: bool
    ) -> None:
        if is_started:
            gateway.generator.script = [Gate()]
        else:
            gateway.generator.before = [Gate()]
        call = begin(gateway, stream=stream, headers={"x-request-timeout": "2.5"})
        await gateway.time.advance(2.4)
        assert not call.is_committed
        await gateway.time.advance(0.1)
        await call.finished()
        assert (call.status, call.error["code"]) == (503, "deadline_exceeded")
        assert gateway.generator.last.deadline == 1002.5
        if is_started:
            assert gateway.generator.generations[0].outcomes == ["left"]
        else:
            assert gateway.generator.num_cancelled_starts == 1

    async def test_after_them_it_is_one_event(self, gateway: FakeGateway) -> None:
        gateway.generator.script = [TextDelta("a"), Gate()]
        call = begin(gateway, headers={"x-request-timeout": "5"})
        await gateway.time.advance(5)
        await call.finished()
        assert [call.events[0]["choices"][0]["text"], call.events[1]["error"]["code"]] == [
            "a",
            "deadline_exceeded",
        ]
        assert call.is_complete
        assert gateway.generator.generations[0].outcomes == ["left"]

    async def test_without_a_header_it_is_ten_minutes(self, gateway: FakeGateway) -> None:
        gateway.generator.script = [Gate()]
        call = begin(gateway, stream=False)
        await gateway.time.advance(599.9)
        assert not call.task.done()
        await gateway.time.advance(0.1)
        assert (await call.finished()).status == 503

    @pytest.mark.parametrize("stream", [True, False])
    async def test_time_that_tokenising_used_up_starts_nothing(self, stream: bool) -> None:
        class Slow(ByteTokenizer):
            def encode(self, text: str) -> list[int]:
                gateway.time.now += 3
                return super().encode(text)

        gateway = await FakeGateway(tokenizer=Slow()).open()
        call = await begin(gateway, stream=stream, headers={"x-request-timeout": "3"}).finished()
        assert (call.status, call.error["code"]) == (503, "deadline_exceeded")
        assert gateway.generator.requests == []

    async def test_it_ends_the_work_for_one_who_does_not_read_too(self, gateway: FakeGateway) -> None:
        gateway.generator.script = [TextDelta("a"), Gate()]
        call = begin(gateway, reads=False, headers={"x-request-timeout": "5"})
        await gateway.time.advance(5)
        assert gateway.generator.generations[0].outcomes == ["left"]
        await gateway.time.advance(25)
        assert call.task.done()

    @pytest.mark.parametrize("value", ["0", "-1", "", "1e3", "nan", "inf", "86400.1", "1,5", "٣", "99999999"])
    async def test_a_bad_header_is_named(self, gateway: FakeGateway, value: str) -> None:
        header = {"x-request-timeout": value.encode().decode("latin-1")}
        call = await begin(gateway, headers=header).finished()
        assert (call.status, call.error["param"]) == (400, "x-request-timeout")


class TestTheClientLeaves:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_while_tokens_come(self, gateway: FakeGateway, stream: bool) -> None:
        gateway.generator.script = [TextDelta("a"), Gate()]
        call = begin(gateway, stream=stream)
        await settle()
        call.leave()
        await call.finished()
        assert gateway.generator.generations[0].outcomes == ["left"]

    @pytest.mark.parametrize("stream", [True, False])
    async def test_while_it_waits_for_a_replica(self, gateway: FakeGateway, stream: bool) -> None:
        gateway.generator.before = [Gate()]
        call = begin(gateway, stream=stream)
        await settle()
        call.leave()
        await call.finished()
        assert gateway.generator.num_cancelled_starts == 1
        assert not call.is_committed

    async def test_after_the_headers_were_committed_by_waiting(self, gateway: FakeGateway) -> None:
        gateway.generator.script = [Gate()]
        call = begin(gateway)
        await gateway.time.advance(12)
        call.leave()
        await call.finished()
        assert gateway.generator.generations[0].outcomes == ["left"]

    async def test_before_its_body_was_whole(self, gateway: FakeGateway) -> None:
        call = begin(gateway, chunks=[b"{"], is_body_complete=False)
        await settle()
        call.leave()
        await call.finished()
        assert gateway.generator.requests == []
        assert not call.is_committed

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_complete_answer_is_not_aborted(self, gateway: FakeGateway, stream: bool) -> None:
        call = await begin(gateway, stream=stream).finished()
        assert call.is_complete
        assert gateway.generator.generations[0].outcomes == ["finished"]

    @pytest.mark.parametrize("stream", [True, False])
    async def test_no_task_is_left(self, gateway: FakeGateway, stream: bool) -> None:
        before = asyncio.all_tasks()
        gateway.generator.script = [TextDelta("a"), Gate()]
        call = begin(gateway, stream=stream)
        await settle()
        call.leave()
        await call.finished()
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BROKEN, "failed"),
        (RuntimeError("a fault of ours"), "failed"),
        (ApiError(403, "tenant_disabled", "This tenant is disabled."), "left"),
    ],
)
async def test_our_fault_is_free_of_charge_and_the_tenant_s_is_not(
    gateway: FakeGateway, error: Exception, outcome: str
) -> None:
    gateway.generator.script = [TextDelta("a"), error]
    await begin(gateway).finished()
    assert gateway.generator.generations[0].outcomes == [outcome]


async def test_a_tenant_frozen_while_its_body_was_on_its_way_starts_nothing(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = asyncio.Event()
    receive = Call._receive

    async def receive_late(call: Call) -> Any:
        await arrived.wait()
        return await receive(call)

    monkeypatch.setattr(Call, "_receive", receive_late)
    call = begin(gateway)
    await settle()
    await gateway.store.put_tenant(switched_off(gateway.tenant), None, BY)
    gateway.wall_time += 1
    arrived.set()
    await call.finished()
    assert (call.status, call.error["code"]) == (403, "tenant_disabled")
    assert gateway.generator.requests == []


class TestTheClientDoesNotRead:
    async def test_it_is_given_up_after_thirty_seconds(self, gateway: FakeGateway) -> None:
        gateway.generator.script = [TextDelta("a"), Gate()]
        call = begin(gateway, reads=False)
        await gateway.time.advance(29.9)
        assert not call.task.done()
        await gateway.time.advance(0.2)
        assert call.task.done()
        assert gateway.generator.generations[0].outcomes == ["left"]
        assert not call.is_complete

    async def test_it_is_given_up_when_too_much_waits_for_it(self) -> None:
        gateway = await FakeGateway(timings=Timings(max_unsent_bytes=1000, overfull_s=1)).open()
        gateway.generator.script = [*(TextDelta("x" * 50) for _ in range(100)), Gate()]
        call = begin(gateway, reads=False)
        await gateway.time.advance(0.9)
        assert not call.task.done()
        await gateway.time.advance(0.2)
        assert call.task.done()
        assert gateway.generator.generations[0].outcomes == ["left"]
        assert gateway.generator.generations[0].usage.completion_tokens < 10

    async def test_a_burst_is_sent_whole_to_one_who_reads(self) -> None:
        gateway = await FakeGateway(timings=Timings(max_unsent_bytes=1000, overfull_s=1)).open()
        gateway.generator.script = say(*("x" * 50 for _ in range(100)))
        call = await begin(gateway).finished()
        assert "".join(texts(call)[:-1]) == "x" * 5000

    async def test_one_who_reads_on_in_time_gets_all(self) -> None:
        gateway = await FakeGateway(timings=Timings(max_unsent_bytes=1000, overfull_s=1)).open()
        gateway.generator.script = say(*("x" * 50 for _ in range(100)))
        call = begin(gateway, reads=False)
        await gateway.time.advance(0.9)
        call.read_on()
        assert (await call.finished()).events[-1] == "[DONE]"
