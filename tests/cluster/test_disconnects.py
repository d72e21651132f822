"""Hundreds of clients leave, each in a state of its own: what they asked for stops within a few steps."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import Any

import pytest

from cluster.link import StepMessage
from engine.tape import ANY_PROMPT
from tests.cluster.in_process import InProcess, in_process, tape

AT_ONCE = 50
MAX_TOKENS = 2000
FEW_STEPS = 60
"""Far fewer than an answer has tokens: at 20 ms each a little over a second."""


@pytest.mark.parametrize("num_clients", [300, pytest.param(1000, marks=pytest.mark.soak)])
async def test_clients_that_leave_at_random_leave_nothing(num_clients: int) -> None:
    """Queued, in a prefill, decoding or forked: 50 clients at a time for 16 seats and few blocks."""
    random = Random(12)
    answer = bytes(random.randrange(97, 123) for _ in range(MAX_TOKENS))
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 32, "num_blocks": 601}
    async with in_process([tape({ANY_PROMPT: answer}, step_ms=0.2)], **sizes) as gateway:
        gateway.link.messages = Steps()
        calls = asyncio.Semaphore(AT_ONCE)
        async with asyncio.timeout(60), asyncio.TaskGroup() as clients:
            for number in range(num_clients):
                await calls.acquire()
                client = clients.create_task(leave_after(gateway, body(random, number), random.randrange(60)))
                client.add_done_callback(lambda client: calls.release())
        last_step = gateway.core.counters().computed_tokens_total
        await is_idle(gateway)
        counters = gateway.core.counters()
        gateway.core.check_integrity()
        assert gateway.telemetry.num_in_flight == 0
        assert (counters.requests_running, counters.requests_waiting, counters.blocks_in_use) == (0, 0, 0)
        assert counters.computed_tokens_total - last_step <= FEW_STEPS * 32


class Steps(deque[StepMessage]):
    """The replica's messages, one a step, that can be waited for."""

    def __init__(self) -> None:
        super().__init__(maxlen=1)
        self._next = asyncio.Event()

    def append(self, message: StepMessage) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def pass_by(self, count: int) -> None:
        for _ in range(count):
            await self._next.wait()


async def leave_after(gateway: InProcess, asked: dict[str, Any], num_steps: int) -> None:
    call = gateway.begin("POST", "/v1/completions", body=asked)
    assert isinstance(gateway.link.messages, Steps)
    await gateway.link.messages.pass_by(num_steps)
    call.leave()
    await call.finished()


def body(random: Random, number: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": f"{number} " + "x" * random.randrange(200),
        "max_tokens": MAX_TOKENS,
        "stream": random.random() < 0.5,
        "n": random.choice((1, 1, 2)),
    }


async def is_idle(gateway: InProcess) -> None:
    async with asyncio.timeout(10):
        while gateway.num_live:  # noqa: ASYNC110  the host tells nobody
            await asyncio.sleep(0)
