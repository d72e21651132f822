"""Warming over links: before any request, one prefix after the other, in no credit, no latency; its ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.credit import Credit
from cluster.engine_host import EngineHost
from cluster.fair_policy import FairShare
from cluster.generation import WARMING
from cluster.hot_prefixes import HotPrefixes
from cluster.index.prefix_index import indexed
from cluster.link import LEAVING, Abort, Hello, LinkDown, LinkMessage, SubmitReply, TokenLink
from cluster.link_events import LinkEvents
from cluster.links import Links
from cluster.prompt_chains import PromptChains
from cluster.token_inbox import TokenInbox
from cluster.warming import Warming
from engine.core import EngineCore
from engine.request import Request, RequestOutput, Timing
from engine.scheduler import Scheduler
from engine.tape import TapeExecutor, TapeSpec
from tests.builders import EOS, make_config
from tests.cluster.fake_replica import FakeReplica, hello, request, settle
from tests.cluster.generator_rig import Rig, tokens
from tests.cluster.in_process import HostLink
from tests.cluster.test_hot_prefixes import chains_of

LONG_ENOUGH_S = 60.0
FIRST, SECOND = range(192), range(1000, 1128)
"""What is hot, the first more so."""


class WarmedRig:
    """Links that warm who comes, to fakes or to what a test connects."""

    def __init__(
        self, connect: Callable[[str], TokenLink] | None = None, limit_s: float = LONG_ENOUGH_S
    ) -> None:
        self.hot = HotPrefixes[PromptChains]()
        self.replicas: dict[str, FakeReplica] = {}
        self.discarded = 0
        self.timings: list[Timing] = []
        self.num_lost = 0
        self.warmed: list[int] = []
        self.on_credit: Callable[[], None] = lambda: None
        self.links = Links(
            connect or self.replica,
            lambda: 0.0,
            LinkEvents(
                on_discarded=self._discard,
                on_timing=self.timings.append,
                on_lost=self._lose,
                on_credit=lambda: self.on_credit(),
                on_hello=lambda hello: self.warming.greet(hello),
            ),
        )
        self.warming = Warming(self.links, self.hot, 8, lambda: 0.0, self, limit_s)

    def replica(self, replica_id: str) -> FakeReplica:
        return self.replicas.setdefault(replica_id, FakeReplica(replica_id))

    def count_warmed(self, num_tokens: int) -> None:
        self.warmed.append(num_tokens)

    def heat(self) -> None:
        for prompt, times in ((FIRST, 9), (SECOND, 5)):
            chains = chains_of(prompt, b"salt")
            for _ in range(times):
                self.hot.note(chains, indexed(chains.of(hello("a")).block_hashes), 0.0)

    async def come(self, *replica_ids: str) -> None:
        self.links.set_replicas(frozenset(replica_ids))
        await settle()

    async def close(self) -> None:
        await self.warming.close()
        await self.links.close()

    def _discard(self, num_tokens: int) -> None:
        self.discarded += num_tokens

    def _lose(self) -> None:
        self.num_lost += 1


def the_end(of: Request, *, cached: int = 0, finish: Any = "length") -> RequestOutput:
    """Its one token and what is told with it."""
    tokens = (7,) if finish == "length" else ()
    return RequestOutput(
        of.request_id, 0, 0, 0, tokens, finish_reason=finish, num_cached_tokens=cached,
        timing=Timing(0.0, 1.0, 1.0, 0.0, 0),
    )  # fmt: skip


@pytest.fixture
async def rig() -> AsyncIterator[WarmedRig]:
    """A gateway that serves from one replica, and has seen prompts."""
    rig = WarmedRig()
    await rig.come("a")
    rig.heat()
    yield rig
    await rig.close()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def come(rig: WarmedRig) -> FakeReplica:
    await rig.come("a", "b")
    return rig.replicas["b"]


async def test_a_new_replica_is_given_the_hottest_first_and_the_next_when_that_has_ended(
    rig: WarmedRig,
) -> None:
    new = await come(rig)
    (first,) = new.submitted
    assert first.prompt_token_ids == tuple(FIRST)
    assert (first.hash_root, first.block_hashes) == chains_of(FIRST, b"salt").of(hello("b"))[:2]
    assert (first.priority, first.sampling.max_tokens) == (WARMING, 1)
    new.say(the_end(first))
    await settle()
    _, second = new.submitted
    assert second.prompt_token_ids == tuple(SECOND)
    new.say(the_end(second, cached=48))
    await settle()
    assert len(new.submitted) == 2
    assert rig.warmed == [192, 80]


async def test_before_any_request_that_waits_for_its_credit(rig: WarmedRig) -> None:
    def let_go() -> None:
        if any(load.replica_id == "b" for load in rig.links.with_credit()) and not sent:
            sent.append(asyncio.ensure_future(rig.links.submit("b", request("waits"), asyncio.Event())))

    sent: list[asyncio.Future[Any]] = []
    rig.on_credit = let_go
    new = await come(rig)
    assert [one.priority for one in new.submitted] == [WARMING, 0]
    await asyncio.gather(*sent)


class Silent(FakeReplica):
    """Says hello when it may."""

    def __init__(self, replica_id: str) -> None:
        super().__init__(replica_id)
        self.may_speak = asyncio.Event()

    async def attach(self) -> AsyncIterator[LinkMessage]:
        await self.may_speak.wait()
        async for message in super().attach():
            yield message


async def test_nothing_is_sent_before_it_has_said_hello(rig: WarmedRig) -> None:
    rig.replicas["b"] = silent = Silent("b")
    assert (await come(rig)).submitted == []
    silent.may_speak.set()
    await settle()
    assert len(silent.submitted) == 1


async def test_a_link_that_is_attached_again_is_not_warmed_again(rig: WarmedRig) -> None:
    new = await come(rig)
    new.say(the_end(new.submitted[0]))
    await settle()
    new.say(the_end(new.submitted[1]))
    await settle()
    for replica_id in ("a", "b"):
        rig.replicas[replica_id].die()
        await rig.replicas[replica_id].attached_again.wait()
        await settle()
    assert (len(rig.replicas["a"].submitted), len(new.submitted)) == (0, 2)


async def test_the_first_replicas_of_a_gateway_are_not_warmed() -> None:
    rig = WarmedRig()
    rig.heat()
    await rig.come("a")
    await rig.come("a", "b")
    assert (len(rig.replicas["a"].submitted), len(rig.replicas["b"].submitted)) == (0, 1)
    await rig.close()


async def test_it_takes_no_credit_and_is_no_load_that_was_routed(rig: WarmedRig) -> None:
    new = await come(rig)
    new.say(credit=Credit(1, 1))
    await settle()
    assert len(new.submitted) == 1
    assert {load.replica_id for load in rig.links.with_credit()} == {"a", "b"}
    assert {load.in_flight_tokens for load in rig.links.candidates()} == {0}


async def test_what_it_makes_is_discarded_and_its_time_is_no_request_s(rig: WarmedRig) -> None:
    new = await come(rig)
    new.say(the_end(new.submitted[0]))
    await settle()
    assert (rig.discarded, rig.timings) == (1, [])
    assert isinstance(await rig.links.submit("b", request("r"), asyncio.Event()), TokenInbox)
    new.say(the_end(request("r")))
    await settle()
    assert (rig.discarded, len(rig.timings)) == (1, 1)


async def test_a_replica_that_dies_in_it_is_lost_once_and_nobody_s_error(
    rig: WarmedRig, caplog: pytest.LogCaptureFixture
) -> None:
    new = await come(rig)
    new.die()
    await settle()
    assert (rig.num_lost, rig.discarded, rig.warmed) == (1, 0, [])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    await new.attached_again.wait()
    await settle()
    assert len(new.submitted) == 1
    assert {load.replica_id for load in rig.links.candidates()} == {"a", "b"}


@pytest.mark.parametrize("code", [LEAVING, "too_long"])
async def test_a_replica_that_refuses_is_left_alone(rig: WarmedRig, code: str) -> None:
    rig.replica("b").reply = SubmitReply(accepted=False, code=code)
    new = await come(rig)
    assert (len(new.submitted), new.aborted, rig.warmed) == (1, [], [])
    assert not rig.warming._tasks


async def test_what_may_have_reached_a_replica_that_cannot_be_called_is_taken_back(rig: WarmedRig) -> None:
    rig.replica("b").reply = LinkDown("a timeout")
    new = await come(rig)
    assert new.aborted == [Abort(new.submitted[0].request_id)]
    new.say(the_end(new.submitted[0], finish="abort"))
    await settle()
    assert (len(new.submitted), rig.timings, rig.warmed) == (1, [], [])


async def test_one_that_fails_is_the_last_one(rig: WarmedRig) -> None:
    new = await come(rig)
    new.say(the_end(new.submitted[0], finish="error"))
    await settle()
    assert (len(new.submitted), rig.warmed, rig.timings) == (1, [], [])


async def test_what_is_not_computed_in_time_is_taken_back() -> None:
    rig = WarmedRig(limit_s=0.0)
    await rig.come("a")
    rig.heat()
    new = await come(rig)
    (sent,) = new.submitted
    assert new.aborted == [Abort(sent.request_id)]
    await rig.close()


async def test_a_replica_that_leaves_does_not_wait_for_its_warming(rig: WarmedRig) -> None:
    new = await come(rig)
    new.say(is_leaving=True)
    await rig.come("a")
    assert rig.links.states().keys() == {"a"}


async def test_the_end_of_the_gateway_takes_it_back(rig: WarmedRig) -> None:
    new = await come(rig)
    await rig.warming.close()
    await settle()
    assert new.aborted == [Abort(new.submitted[0].request_id)]


# --- what becomes hot ---------------------------------------------------------------------------


@pytest.fixture
async def served() -> AsyncIterator[Rig]:
    rig = await Rig().open("a", "b")
    yield rig
    await rig.links.close()


def hottest(rig: Rig) -> list[int]:
    return [len(one.prompt_token_ids) for one in rig.dispatching.hot.hottest(8, 1.5, rig.now)]


async def test_a_prompt_is_seen_once_it_is_computed_and_once_though_it_goes_on_elsewhere(served: Rig) -> None:
    generation = await served.start(prompt_token_ids=tuple(range(200)))
    assert served.dispatching.hot.num_seen == 0
    deltas = generation.deltas()
    served.of(generation).say(tokens("a", num_cached_tokens=0))
    await anext(deltas)
    assert served.dispatching.hot.num_seen == 3
    served.of(generation).die()
    reading = asyncio.ensure_future(anext(deltas))
    await settle()
    served.of(generation).say(tokens("b", 1, attempt=1, num_cached_tokens=192, finish="stop"))
    await reading
    assert hottest(served) == []
    generation.end("finished")


async def test_what_two_requests_share_is_hot(served: Rig) -> None:
    for number in range(2):
        prompt = (*range(150), 1000 + number, *range(50))
        generation = await served.start("r", prompt_token_ids=prompt)
        served.of(generation).say(tokens("a", num_cached_tokens=0, finish="stop"))
        _ = [delta async for delta in generation.deltas()]
        generation.end("finished")
    assert hottest(served) == [128]


async def test_a_prompt_that_failed_is_not_seen(served: Rig) -> None:
    generation = await served.start(prompt_token_ids=tuple(range(200)))
    served.of(generation).say(tokens("", num_cached_tokens=0, finish="abort"))
    with pytest.raises(Exception, match="could not finish"):
        await anext(generation.deltas())
    assert served.dispatching.hot.num_seen == 0
    generation.end("failed")


# --- with an engine -----------------------------------------------------------------------------


class Made:
    """What an engine has made, and what it told of its cache."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_cached: list[int] = []

    def __call__(self, outputs: list[RequestOutput], *seconds: float) -> None:
        self.num_tokens += sum(len(output.token_ids) for output in outputs)
        told = (output.num_cached_tokens for output in outputs)
        self.num_cached += [one for one in told if one is not None]


def a_host(replica_id: str, on_step: Made) -> EngineHost:
    config = make_config(num_blocks=401, block_size=16, max_num_seqs=8, max_num_batched_tokens=256)
    executor = TapeExecutor(TapeSpec({"*": (7, 8, EOS)}), num_blocks=401, block_size=16)
    core = EngineCore(Scheduler(config, FairShare(), eos_token_ids=[EOS]), executor, lambda: 0.0)
    named = Hello(replica_id, ord(replica_id), "tape", "r1", b"root", 16, 10_000, 8, 401, 256)
    return EngineHost(core, named, lambda: 0.0, on_step=on_step, ramp_s=0.0)


async def test_engines_make_what_was_answered_and_discarded_and_requests_find_what_was_warmed() -> None:
    made = {"a": Made(), "b": Made()}
    hosts = {name: a_host(name, on_step) for name, on_step in made.items()}
    rig = WarmedRig(lambda replica_id: HostLink(hosts[replica_id]))
    with ThreadPoolExecutor(2) as threads:
        for host in hosts.values():
            host.start(asyncio.get_running_loop(), threads)
        try:
            answered = await answer_of_the_warmed(rig)
        finally:
            await rig.close()
            for host in hosts.values():
                await asyncio.to_thread(host.stop)
    assert rig.warmed == [192, 128]
    assert made["b"].num_cached == [0, 0, 192]
    assert made["b"].num_tokens == answered + rig.discarded == 3 + 2
    assert made["a"].num_tokens == 0
    assert len(rig.timings) == 1


async def answer_of_the_warmed(rig: WarmedRig) -> int:
    """Tokens of b's answer to what begins with the first prefix, once both are computed there."""
    async with asyncio.timeout(10):
        await rig.come("a")
        while not rig.links.candidates():  # noqa: ASYNC110  links tell nobody
            await asyncio.sleep(0)
        rig.heat()
        await rig.come("a", "b")
        while len(rig.warmed) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return await answer_of(rig, "b", (*FIRST, 5))


async def answer_of(rig: WarmedRig, replica_id: str, prompt: tuple[int, ...]) -> int:
    """Tokens of the answer."""
    chain = chains_of(prompt, b"salt").of(rig.links.hello(replica_id))
    asked = replace(
        request("r"), prompt_token_ids=prompt, hash_root=chain.root, block_hashes=chain.block_hashes
    )
    wake = asyncio.Event()
    inbox = await rig.links.submit(replica_id, asked, wake)
    assert isinstance(inbox, TokenInbox)
    num_tokens = 0
    while inbox.is_live():
        await wake.wait()
        wake.clear()
        while (output := inbox.take()) is not None:
            num_tokens += len(output.token_ids)
    return num_tokens
