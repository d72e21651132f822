"""Thousands of requests, a third of them aborted in whatever state they were in, and nothing stays."""

from __future__ import annotations

import asyncio
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import psutil
import pytest

from cluster.engine_host import EngineHost
from cluster.fair_policy import FairShare
from cluster.link import Abort, Hello, StepMessage, decode_message
from engine.core import EngineCore
from engine.request import Request
from engine.scheduler import Scheduler
from engine.tape import TapeExecutor, TapeSpec
from tests.builders import BLOCK_SIZE, EOS, make_config, make_request

NUM_WARM_UP = 500
AT_ONCE = 64
ABORTED_SHARE = 0.3
ANSWER = tuple(range(10, 30))
HELLO = Hello("replica", 1, "tape", "r1", b"root", BLOCK_SIZE, 10_000, 32, 201, 128)


class Crowd:
    """Submits requests, a bounded number at a time, and ends some of them early."""

    def __init__(self, host: EngineHost, random: Random) -> None:
        self._host = host
        self._random = random
        self._unfinished: dict[str, set[int]] = {}
        self._num_submitted = 0

    async def run(self, num_requests: int) -> None:
        last = self._num_submitted + num_requests
        stream = self._host.attach("g")
        await anext(stream)
        while self._num_submitted < last or self._unfinished:
            while self._num_submitted < last and len(self._unfinished) < AT_ONCE:
                self._submit()
            message = decode_message(await anext(stream))
            assert isinstance(message, StepMessage)
            for output in message.outputs:
                if output.finish_reason is not None:
                    self._unfinished[output.request_id].remove(output.sibling)
                    if not self._unfinished[output.request_id]:
                        del self._unfinished[output.request_id]
                elif self._random.random() < ABORTED_SHARE / len(ANSWER):
                    self._abort(output.request_id, output.sibling)
        await stream.aclose()

    def _submit(self) -> None:
        request = self._request(f"r{self._num_submitted}")
        self._num_submitted += 1
        self._unfinished[request.request_id] = set(range(request.n))
        assert self._host.submit("g", request).accepted
        if self._random.random() < ABORTED_SHARE / 2:  # while it waits, or in its first steps
            self._abort(request.request_id, None)

    def _abort(self, request_id: str, sibling: int | None) -> None:
        self._host.abort([Abort(request_id, self._random.choice((None, sibling)))])

    def _request(self, request_id: str) -> Request:
        random = self._random
        shared = (100 + random.randrange(20),) * (4 * random.randrange(12))
        own = tuple(random.randrange(1000) for _ in range(random.randint(1, 40)))
        return make_request(
            request_id, shared + own, max_tokens=random.randint(1, 40), n=random.choice((1, 1, 1, 2, 4))
        )


@pytest.mark.parametrize("num_requests", [3_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_after_thousands_of_requests_the_engine_is_as_empty_as_after_the_first(
    num_requests: int,
) -> None:
    config = make_config(num_blocks=201, max_num_seqs=32, max_num_batched_tokens=128)
    tape = TapeExecutor(TapeSpec({"*": ANSWER}), num_blocks=config.num_blocks, block_size=BLOCK_SIZE)
    scheduler = Scheduler(config, FairShare(), eos_token_ids=[EOS])
    core = EngineCore(scheduler, tape, time.monotonic)
    host = EngineHost(core, HELLO, time.monotonic)
    with ThreadPoolExecutor(1) as thread:
        host.start(asyncio.get_running_loop(), thread)
        crowd = Crowd(host, Random(7))
        await crowd.run(NUM_WARM_UP)
        before = _usage()
        await crowd.run(num_requests - NUM_WARM_UP)
        await asyncio.to_thread(host.stop)
    counters = core.counters()
    core.check_integrity()
    assert (counters.requests_running, counters.requests_waiting, counters.blocks_in_use) == (0, 0, 0)
    assert counters.preemptions_total > 100, "the pool was not short"
    assert counters.failed_requests_total == 0
    rss, fds, tasks = _usage()
    assert rss <= before[0] * 1.05
    assert (fds, tasks) == before[1:]
    assert not host._accounts.num_live


def _usage() -> tuple[int, int, int]:
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss, process.num_fds(), len(asyncio.all_tasks())
