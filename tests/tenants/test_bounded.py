"""On a loop whose clock is set forward, as if it had been kept from running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tenants.bounded import bounded

LIMIT_S = 0.25
TURNS = 5
"""Of the loop, that an answer takes from the socket to whoever waits for it."""


class LaggingLoop(asyncio.SelectorEventLoop):
    lag_s = 0.0

    def time(self) -> float:
        return super().time() + self.lag_s

    def stand_still(self, seconds: float) -> None:
        self.lag_s += seconds


def on_lagging_loop(test: Callable[[LaggingLoop], Awaitable[None]]) -> None:
    loop = LaggingLoop()
    try:
        loop.run_until_complete(test(loop))
    finally:
        loop.close()


async def answer_after(turns: int) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return "answer"


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def test_an_answer_that_came_while_the_loop_stood_still_is_heard() -> None:
    async def run(loop: LaggingLoop) -> None:
        async with bounded(LIMIT_S):
            loop.stand_still(4 * LIMIT_S)
            assert await answer_after(TURNS) == "answer"

    on_lagging_loop(run)


def test_what_never_answers_ends_at_the_limit() -> None:
    async def run(loop: LaggingLoop) -> None:
        begun = loop.time()
        with pytest.raises(TimeoutError):
            async with bounded(LIMIT_S):
                await never()
        assert LIMIT_S <= loop.time() - begun < 2 * LIMIT_S

    on_lagging_loop(run)


def test_it_is_put_off_once_only() -> None:
    async def run(loop: LaggingLoop) -> None:
        loop.call_later(LIMIT_S / 2, loop.stand_still, 4 * LIMIT_S)
        loop.call_later(5 * LIMIT_S, loop.stand_still, 40 * LIMIT_S)
        with pytest.raises(TimeoutError):
            async with bounded(LIMIT_S):
                await never()
        assert loop.lag_s == 44 * LIMIT_S

    on_lagging_loop(run)


def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    async def run(loop: LaggingLoop) -> None:
        async def wait() -> None:
            async with bounded(LIMIT_S):
                await never()

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    on_lagging_loop(run)
