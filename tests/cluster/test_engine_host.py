"""The engine host: the real core and thread on a tape, read as a gateway would."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from msgspec import structs

from cluster.admission_windows import DIVIDED_EVERY_S
from cluster.backlog import Backlog
from cluster.credit import Credit
from cluster.engine_host import EngineDead, EngineHost
from cluster.fair_policy import FairShare
from cluster.link import OCCUPIED, Abort, Hello, NotReached, Report, StepMessage, SubmitReply, decode_message
from cluster.served_elsewhere import FlowService
from engine.core import EngineCore
from engine.counters import EngineCounters
from engine.request import Flow, Request, RequestOutput
from engine.scheduler import Scheduler
from engine.step import StepPlan
from engine.tape import TapeExecutor, TapeSpec
from tests.builders import BLOCK_SIZE, EOS, FakeClock, make_config, make_request

HELLO = Hello("replica", 1, "tape", "r1", b"root", BLOCK_SIZE, 10_000, 32, 101, 256)
ANSWER = (10, 11, 12)
REFUSED = SubmitReply(accepted=False, code="empty_prompt", message="prompt must hold at least one token")


class GatedTape(TapeExecutor):
    """Each step waits until the test lets it pass."""

    def __init__(self, answer: Sequence[int], num_blocks: int) -> None:
        super().__init__(TapeSpec({"*": tuple(answer)}), num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.gate = threading.Semaphore(0)
        self.failure: BaseException | None = None
        self.num_waiting = 0

    def submit(self, plan: StepPlan):  # type: ignore[no-untyped-def]
        self.num_waiting += 1
        self.gate.acquire()
        if self.failure is not None:
            raise self.failure
        return super().submit(plan)

    def open(self, steps: int = 10_000) -> None:
        self.gate.release(steps)


class Rig:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic, **sizes: int) -> None:
        config = make_config(**sizes)
        self.tape = GatedTape(ANSWER, config.num_blocks)
        scheduler = Scheduler(config, FairShare(), eos_token_ids=[EOS])
        self.fatal: list[BaseException] = []
        core = EngineCore(scheduler, self.tape, clock)
        self.host = EngineHost(core, HELLO, clock, on_fatal=self.fatal.append, ramp_s=0.0)
        self.thread = ThreadPoolExecutor(1)
        self._streams: list[Stream] = []
        """All that were attached: one that nobody holds is closed, and its requests are aborted."""
        self.host.start(asyncio.get_running_loop(), self.thread)

    async def attach(self, gateway_id: str) -> Stream:
        stream = Stream(self.host.attach(gateway_id))
        self._streams.append(stream)
        assert await stream.next() == HELLO
        return stream


class Stream:
    """One attach stream, read to what the test waits for."""

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages

    async def next(self) -> Hello | StepMessage:
        async with asyncio.timeout(10):
            return decode_message(await anext(self._messages))

    async def made(self) -> tuple[RequestOutput, ...]:
        """The outputs of the next message that has any."""
        while True:
            message = await self.next()
            if isinstance(message, StepMessage) and message.outputs:
                return message.outputs

    async def read_to_end(self) -> None:
        with suppress(StopAsyncIteration):
            while True:
                await self.next()

    async def outputs(self, request_id: str) -> list[RequestOutput]:
        """All outputs of a request, to its finish."""
        outputs: list[RequestOutput] = []
        while not outputs or outputs[-1].finish_reason is None:
            outputs += [output for output in await self.made() if output.request_id == request_id]
        return outputs

    async def counters_where_idle(self) -> EngineCounters:
        """Reads until the engine has nothing left; fails by the test's timeout if that never comes."""
        while True:
            message = await self.next()
            if isinstance(message, StepMessage):
                counters = message.counters
                if (counters.requests_running, counters.requests_waiting, counters.blocks_in_use) == (
                    0,
                    0,
                    0,
                ):
                    return counters

    async def close(self) -> None:
        await self._messages.aclose()  # type: ignore[attr-defined]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.tape.open()
    await asyncio.to_thread(rig.host.stop)
    rig.thread.shutdown()


def tokens(outputs: list[RequestOutput]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


async def test_a_request_s_tokens_come_back_in_order_with_one_finish(rig: Rig) -> None:
    stream = await rig.attach("g")
    assert rig.host.submit("g", make_request("r", max_tokens=9)) == SubmitReply(accepted=True)
    rig.tape.open()
    outputs = await stream.outputs("r")
    assert tokens(outputs) == (*ANSWER, EOS)
    assert [output.first_output_index for output in outputs] == [0, 1, 2, 3]
    assert [output.finish_reason for output in outputs] == [None, None, None, "stop"]


async def test_one_step_is_one_message_with_all_of_a_gateway_s_tokens(rig: Rig) -> None:
    stream = await rig.attach("g")
    for name in ("a", "b"):
        rig.host.submit("g", make_request(name))
    rig.tape.open(1)
    assert sorted(output.request_id for output in await stream.made()) == ["a", "b"]


async def test_each_gateway_hears_its_own_requests_only(rig: Rig) -> None:
    first, second = await rig.attach("g1"), await rig.attach("g2")
    rig.host.submit("g1", make_request("a"))
    rig.host.submit("g2", make_request("b"))
    rig.tape.open()
    assert tokens(await first.outputs("a")) == tokens(await second.outputs("b"))
    assert await first.counters_where_idle()


async def test_what_never_fits_is_refused_at_once_while_a_step_is_stuck(rig: Rig) -> None:
    await rig.attach("g")
    rig.host.submit("g", make_request("a"))
    assert rig.host.submit("g", make_request("b", prompt=[])) == REFUSED


async def test_an_idle_link_is_heard_from(rig: Rig) -> None:
    stream = await rig.attach("g")
    message = await stream.next()
    assert isinstance(message, StepMessage)
    assert message.outputs == ()
    assert message.counters.blocks_total == 100


async def test_an_abort_frees_the_blocks_and_tells_the_end(rig: Rig) -> None:
    stream = await rig.attach("g")
    rig.host.submit("g", make_request("r", prompt=40, max_tokens=50))
    rig.tape.open(1)
    assert (await stream.made())[0].token_ids == (10,)
    rig.host.abort([Abort("r")])
    rig.tape.open()
    assert (await stream.outputs("r"))[-1].finish_reason == "abort"
    await stream.counters_where_idle()


async def test_an_abort_that_comes_before_its_submit_is_remembered(rig: Rig) -> None:
    stream = await rig.attach("g")
    rig.host.abort([Abort("r")])
    rig.host.submit("g", make_request("r"))
    rig.host.submit("g", make_request("other"))
    rig.tape.open()
    assert tokens(await stream.outputs("other"))
    counters = await stream.counters_where_idle()
    assert counters.requests_running == 0


async def test_a_gateway_that_attaches_anew_starts_with_nothing_running(rig: Rig) -> None:
    old = await rig.attach("g")
    rig.host.submit("g", make_request("r", max_tokens=50, ignore_eos=True))
    rig.tape.open(1)
    await old.made()
    await until(lambda: rig.tape.num_waiting == 2)
    assert rig.host.counters.blocks_in_use > 0
    await rig.attach("g")
    rig.tape.open(1)  # what runs ends; a third step would wait
    await old.read_to_end()
    await until(lambda: rig.host.counters.blocks_in_use == 0)


async def test_the_end_of_a_gateway_s_old_stream_touches_nothing_of_its_new_one(rig: Rig) -> None:
    old = await rig.attach("g")
    new = await rig.attach("g")
    rig.host.submit("g", make_request("r"))
    await old.read_to_end()
    rig.tape.open()
    assert tokens(await new.outputs("r")) == (*ANSWER, EOS)


async def test_a_broken_stream_s_requests_are_aborted_before_the_next_step(rig: Rig) -> None:
    stream = await rig.attach("g")
    rig.host.submit("g", make_request("r", max_tokens=50, ignore_eos=True))
    rig.tape.open(1)
    await stream.made()
    await until(lambda: rig.tape.num_waiting == 2)
    assert rig.host.counters.blocks_in_use > 0
    await stream.close()
    rig.tape.open(1)  # what runs ends; a third step would wait
    await until(lambda: rig.host.counters.blocks_in_use == 0)


async def test_a_gateway_without_a_stream_is_refused_before_and_after(rig: Rig) -> None:
    with pytest.raises(NotReached):
        rig.host.submit("g", make_request("r"))
    stream = await rig.attach("g")
    await stream.close()
    with pytest.raises(NotReached):
        rig.host.submit("g", make_request("r"))


class TestCredit:
    """The windows of the hello's replica: 256 tokens a step and 32 seats, at their full size at once."""

    FULL, HALF = Credit(513, 41), Credit(257, 21)

    @pytest.fixture(autouse=True)
    def often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An idle engine looks at its windows as often as they are divided."""
        monkeypatch.setattr("cluster.engine_host.IDLE_CHECK_S", DIVIDED_EVERY_S)

    @staticmethod
    async def window(stream: Stream, expected: Credit) -> None:
        """Reads until the replica tells this window."""
        async with asyncio.timeout(10):
            while True:
                message = await stream.next()
                if isinstance(message, StepMessage) and message.credit == expected:
                    return

    async def test_is_told_after_the_hello_and_with_every_message(self, rig: Rig) -> None:
        stream = await rig.attach("g")
        await self.window(stream, self.FULL)
        rig.host.submit("g", make_request("r"))
        rig.tape.open(1)
        assert [(await stream.next()).credit for _ in range(2)] == [self.FULL] * 2  # type: ignore[union-attr]

    async def test_is_divided_among_gateways_by_what_they_report(self, rig: Rig) -> None:
        first = await rig.attach("g")
        second = await rig.attach("h")
        await self.window(first, self.HALF)
        await self.window(second, self.HALF)
        rig.host.report("h", Report((Backlog("flood", 100_000, 1000),)))
        await self.window(second, self.FULL)

    async def test_of_a_gateway_that_left_is_the_others(self, rig: Rig) -> None:
        first = await rig.attach("g")
        second = await rig.attach("h")
        await self.window(first, self.HALF)
        await second.close()
        await self.window(first, self.FULL)

    async def test_tells_what_tenants_got_through_other_gateways(self, rig: Rig) -> None:
        await rig.attach("g")
        other = await rig.attach("h")
        rig.host.submit("g", make_request("r", prompt=5, max_tokens=1, flow=Flow("acme")))
        rig.tape.open()
        async with asyncio.timeout(10):
            while not (isinstance(message := await other.next(), StepMessage) and message.served):
                pass
        assert message.served == (FlowService("acme", 6.0),)


class TestSuspects:
    """Requests that lost a replica: one at a time, whichever gateway they come from."""

    @staticmethod
    def suspect(name: str) -> Request:
        return structs.replace(make_request(name, max_tokens=50, ignore_eos=True), is_suspect=True)

    async def test_are_taken_one_at_a_time_and_others_beside_them(self, rig: Rig) -> None:
        for gateway_id in ("g", "h"):
            await rig.attach(gateway_id)
        assert rig.host.submit("g", self.suspect("a")).accepted
        assert rig.host.submit("h", self.suspect("b")).code == OCCUPIED
        assert rig.host.submit("h", make_request("c")).accepted

    @pytest.mark.parametrize("end", ["token", "abort", "gateway", "aborted before"])
    async def test_make_room_once_they_are_cleared_or_gone(self, rig: Rig, end: str) -> None:
        stream = await rig.attach("g")
        await rig.attach("h")
        if end == "aborted before":
            rig.host.abort([Abort("a")])
        assert rig.host.submit("g", self.suspect("a")).accepted
        if end == "token":
            rig.tape.open(1)
        elif end == "abort":
            rig.host.abort([Abort("a")])
            rig.tape.open(1)
        elif end == "gateway":
            await stream.close()
            rig.tape.open(1)
        await until(lambda: rig.host.submit("h", self.suspect("b")).accepted)


async def test_a_gateway_that_does_not_read_is_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.engine_outbox.MAX_UNREAD_MESSAGES", 2)
    slow, reader = await rig.attach("slow"), await rig.attach("reader")
    for name in ("a", "b"):
        rig.host.submit("slow", make_request(name))
    rig.host.submit("reader", make_request("c"))
    for _ in range(len(ANSWER) + 1):  # the reader keeps up, the slow one reads nothing
        rig.tape.open(1)
        await reader.made()
    await slow.read_to_end()


async def test_a_step_s_exception_ends_its_requests_and_the_engine_goes_on(rig: Rig) -> None:
    stream = await rig.attach("g")
    rig.host.submit("g", make_request("a"))
    rig.tape.failure = RuntimeError("planted")
    rig.tape.open(1)
    (output,) = await stream.outputs("a")
    assert (output.finish_reason, output.error_code) == ("error", "engine_error")
    rig.tape.failure = None
    rig.host.submit("g", make_request("b", max_tokens=3))
    rig.tape.open()
    assert tokens(await stream.outputs("b")) == ANSWER


async def test_a_thread_that_fails_says_so_and_takes_no_more(rig: Rig) -> None:
    stream = await rig.attach("g")
    rig.host.submit("g", make_request("a"))
    rig.tape.failure = SystemExit("planted")
    rig.tape.open(1)
    while not rig.fatal:
        await stream.next()
    assert isinstance(rig.fatal[0], SystemExit)
    while True:
        try:
            rig.host.check()
        except EngineDead:
            break
        await asyncio.sleep(0)
    with pytest.raises(NotReached):
        rig.host.submit("g", make_request("b"))


async def test_an_id_that_is_live_keeps_its_first_request(rig: Rig) -> None:
    stream = await rig.attach("g")
    for _ in range(2):
        rig.host.submit("g", make_request("r", max_tokens=3))
    rig.tape.open()
    outputs = await stream.outputs("r")
    assert (tokens(outputs), outputs[-1].finish_reason) == (ANSWER, "length")


async def test_one_sibling_is_aborted_and_the_request_is_live_until_the_last_has_ended(rig: Rig) -> None:
    stream = await rig.attach("g")
    rig.host.submit("g", make_request("r", n=2, max_tokens=3, ignore_eos=True))
    rig.tape.open(1)
    await stream.made()
    rig.host.abort([Abort("r", 0)])
    rig.tape.open()
    outputs: list[RequestOutput] = []
    while {output.sibling for output in outputs if output.finish_reason} != {0, 1}:
        outputs += await stream.made()
    ends = {output.sibling: output.finish_reason for output in outputs if output.finish_reason}
    assert ends == {0: "abort", 1: "length"}
    assert await stream.counters_where_idle()
    assert not rig.host._accounts.num_live


async def test_three_failed_steps_in_a_row_are_reported_and_end_the_engine(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.engine_host.FLUSH_GRACE_S", 0.0)
    stream = await rig.attach("g")
    rig.tape.failure = MemoryError("planted")
    rig.tape.open()
    for name in ("a", "b", "c"):
        rig.host.submit("g", make_request(name))
        assert (await stream.outputs(name))[-1].error_code == "engine_error"
    while not rig.fatal:
        await stream.next()
    assert "the last 3 steps failed" in str(rig.fatal[0])
    with pytest.raises(EngineDead, match="the last 3 steps failed"):
        rig.host.check()


async def test_work_that_stands_still_is_explained_and_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cluster.engine_host.WATCH_EVERY_S", 0.0)
    monkeypatch.setattr("cluster.engine_host.FLUSH_GRACE_S", 0.0)
    clock = FakeClock()
    rig = Rig(clock=clock)
    await rig.attach("g")
    rig.host.submit("g", make_request("a"))
    await until(lambda: rig.tape.num_waiting > 0)
    for _ in range(10):  # looked at many times, but no time passes
        await asyncio.sleep(0)
    rig.host.check()
    clock.advance(5.0)
    await until(lambda: bool(rig.fatal))
    assert "a step has been running for 5.0 s (0 running, 1 waiting): the executor hangs" in caplog.text
    with pytest.raises(EngineDead, match="the executor hangs"):
        rig.host.check()
    rig.tape.open()
    await asyncio.to_thread(rig.host.stop)
    rig.thread.shutdown()


async def test_what_is_submitted_while_a_step_runs_has_waited_since() -> None:
    clock = FakeClock()
    rig = Rig(clock=clock)
    stream = await rig.attach("g")
    rig.host.submit("g", make_request("a"))
    await until(lambda: rig.tape.num_waiting > 0)
    rig.host.submit("g", make_request("b"))
    clock.advance(3.0)
    rig.tape.open()
    timing = (await stream.outputs("b"))[-1].timing
    await asyncio.to_thread(rig.host.stop)
    rig.thread.shutdown()
    assert timing is not None
    assert timing.queued_s == 3.0
