"""A gateway and a replica in one process, without Ray: the real app, links, host and engine, on tapes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from cluster.cluster_generator import ClusterGenerator
from cluster.engine_host import EngineHost
from cluster.fair_policy import FairShare
from cluster.link import (
    Abort,
    Hello,
    LinkMessage,
    Report,
    StepMessage,
    SubmitReply,
    decode_aborts,
    decode_message,
    decode_replies,
    decode_requests,
    encode,
)
from cluster.link_events import LinkEvents
from cluster.links import Links
from cluster.public_prefixes import NO_PREFIXES, PublicPrefixes
from cluster.running import Running
from cluster.telemetry import Telemetry
from engine.core import EngineCore
from engine.executor import Done
from engine.request import Request, RequestOutput
from engine.scheduler import Scheduler
from engine.step import ScheduledRequest, StepPlan, StepResult
from engine.tape import TapeExecutor, TapeSpec
from engine.tokenizer import ByteTokenizer
from tests.builders import BLOCK_SIZE, EOS, make_config
from tests.builders_tenants import SECRET
from tests.cluster.dispatching import Dispatching
from tests.cluster.fake_replica import OpenDoor
from tests.cluster.fakes import FakeGateway, InlineExecutor


class SiblingTape(TapeExecutor):
    """Each sibling plays its own tape; the last tape is that of all further siblings."""

    def __init__(self, specs: Sequence[TapeSpec], *, num_blocks: int, block_size: int) -> None:
        super().__init__(specs[0], num_blocks=num_blocks, block_size=block_size)
        self._specs = specs
        self.errors: dict[tuple[int, int], str] = {}
        """(sibling, output index) → the error that its row meets there."""

    def submit(self, plan: StepPlan) -> Any:
        played = super().submit(plan)
        failed = {
            row: self.errors[place]
            for row, one in enumerate(plan.scheduled)
            for sibling in range(one.sibling, one.sibling + one.n)
            if one.output_index is not None and (place := (sibling, one.output_index)) in self.errors
        }
        if failed:
            result = played.result()
            token_ids = tuple(
                None if row in failed else token_id for row, token_id in enumerate(result.token_ids)
            )
            siblings = {row: others for row, others in result.siblings.items() if row not in failed}
            return Done(StepResult(result.step, token_ids, result.logprobs, failed, siblings))
        return played

    def _sample(self, request: ScheduledRequest) -> int | None:
        self._spec = self._specs[min(request.sibling, len(self._specs) - 1)]
        return super()._sample(request)

    def _logprobs(self, request: ScheduledRequest) -> Any:
        self._spec = self._specs[min(request.sibling, len(self._specs) - 1)]
        return super()._logprobs(request)


class HostLink:
    """A `TokenLink` to a host in this process, through the bytes that would cross processes.

    Up to `chunk` messages are told as one, so that a row holds as many tokens.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self.chunk = 1
        self.aborts: list[Abort] = []
        self.messages: deque[StepMessage] = deque(maxlen=100)
        """The last ones that the replica sent."""

    async def submit(self, request: Request) -> SubmitReply:
        (asked,) = decode_requests(encode((request,)))
        (reply,) = decode_replies(encode((self._host.submit("g", asked),)))
        return reply

    async def abort(self, aborts: tuple[Abort, ...]) -> None:
        self.aborts += aborts
        self._host.abort(decode_aborts(encode(aborts)))

    async def report(self, report: Report) -> None: ...

    async def attach(self) -> AsyncIterator[LinkMessage]:
        waiting: list[StepMessage] = []
        async for data in self._host.attach("g"):
            message = decode_message(data)
            if isinstance(message, Hello):
                yield message
                continue
            waiting.append(message)
            self.messages.append(message)
            if len(waiting) >= self.chunk or _is_idle(message):
                yield _as_one(waiting)
                waiting.clear()


def _is_idle(message: StepMessage) -> bool:
    return not message.counters.requests_running and not message.counters.requests_waiting


def _as_one(messages: Sequence[StepMessage]) -> StepMessage:
    rows: dict[tuple[str, int], RequestOutput] = {}
    for output in (output for message in messages for output in message.outputs):
        place = (output.request_id, output.sibling)
        rows[place] = _joined(rows[place], output) if place in rows else output
    return StepMessage(outputs=tuple(rows.values()), counters=messages[-1].counters)


def _joined(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    logprobs = (*(first.logprobs or ()), *(second.logprobs or ()))
    return msgspec.structs.replace(
        second,
        first_output_index=first.first_output_index,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs or None,
        num_cached_tokens=first.num_cached_tokens,
        lookup=first.lookup,
    )


class InProcess(FakeGateway):
    """A gateway whose one replica plays `tapes`, one spec a sibling."""

    def __init__(
        self,
        tapes: Sequence[TapeSpec],
        *,
        tokenizer: Any = None,
        public: PublicPrefixes = NO_PREFIXES,
        **sizes: Any,
    ) -> None:
        config = make_config(
            **{"num_blocks": 20_001, "max_num_seqs": 256, "max_num_batched_tokens": 2048} | sizes
        )
        self.executor = SiblingTape(tapes, num_blocks=config.num_blocks, block_size=BLOCK_SIZE)
        scheduler = Scheduler(config, FairShare(), eos_token_ids=[EOS])
        hello = Hello(
            "a", 1, "tape", "r1", b"root", BLOCK_SIZE, config.max_model_len, config.max_num_seqs, 1, 2048
        )
        self.core = EngineCore(scheduler, self.executor, time.monotonic)
        self.host = EngineHost(self.core, hello, time.monotonic)
        self.link = HostLink(self.host)
        self.links = Links(
            lambda replica_id: self.link,
            lambda: 0.0,  # never suspect, however busy
            LinkEvents(on_credit=lambda: self.dispatching.room.let_go()),
        )
        self.dispatching = Dispatching(self.links)
        tokenizer = tokenizer or ByteTokenizer()
        generator = ClusterGenerator(
            self.links,
            self.dispatching.dispatcher,
            self.dispatching.room,
            OpenDoor(),
            tokenizer.token_bytes,
            SECRET,
            InlineExecutor(),
            Telemetry(dict),
            Running(),
            public,
        )
        super().__init__(
            generator=generator,
            tokenizer=tokenizer,
            max_model_len=lambda: config.max_model_len,
            max_num_seqs=config.max_num_seqs,
        )

    @property
    def num_live(self) -> int:
        counters = self.host.counters
        return counters.requests_running + counters.requests_waiting


@asynccontextmanager
async def in_process(tapes: Sequence[TapeSpec], **sizes: Any) -> AsyncIterator[InProcess]:
    """Runs one; at the end nothing is live and every block is back."""
    gateway = InProcess(tapes, **sizes)
    with ThreadPoolExecutor(1) as thread:
        gateway.host.start(asyncio.get_running_loop(), thread)
        try:
            gateway.links.set_replicas(frozenset({"a"}))
            await gateway.open()
            async with asyncio.timeout(10):
                while not gateway.links.candidates():  # noqa: ASYNC110  links tell nobody
                    await asyncio.sleep(0)
            yield gateway
        finally:
            await gateway.links.close()
            await asyncio.to_thread(gateway.host.stop)


def tape(answers: Mapping[str, Sequence[int]], **fields: Any) -> TapeSpec:
    return TapeSpec({name: tuple(answer) for name, answer in answers.items()}, **fields)
