"""A replica whose engine runs on the test's own event loop, and dies in the steps that it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from cluster.link import (
    Abort,
    Hello,
    LinkDown,
    LinkMessage,
    Report,
    StepMessage,
    SubmitReply,
    decode_message,
    decode_requests,
    encode,
)
from engine.core import EngineCore
from engine.request import Request


class MortalReplica:
    """A `TokenLink` over an engine core. It comes back with a new core, as a restarted process does.

    `dies(number of steps so far)` is asked after every step, whose outputs are lost with it.
    """

    def __init__(
        self, replica_id: str, make_core: Callable[[], EngineCore], dies: Callable[[int], bool]
    ) -> None:
        self._replica_id = replica_id
        self._make_core = make_core
        self._dies = dies
        self._num_steps = 0
        self.core = make_core()
        self.num_deaths = 0

    async def submit(self, request: Request) -> SubmitReply:
        (asked,) = decode_requests(encode((request,)))
        self.core.add(asked)
        return SubmitReply(accepted=True)

    async def abort(self, aborts: tuple[Abort, ...]) -> None:
        for abort in aborts:
            self.core.abort(abort.request_id, abort.sibling)

    async def report(self, report: Report) -> None: ...

    async def attach(self) -> AsyncIterator[LinkMessage]:
        yield Hello(self._replica_id, self.num_deaths, "tiny", "r1", b"root", 16, 256, 16, 400, 256)
        yield StepMessage((), self.core.counters())
        while True:
            await asyncio.sleep(0)
            if self.core.has_work():
                yield self._step()

    def _step(self) -> LinkMessage:
        outputs = self.core.step()
        self._num_steps += 1
        if self._dies(self._num_steps):
            self.num_deaths += 1
            self.core = self._make_core()
            raise LinkDown("killed")
        return decode_message(encode(StepMessage(tuple(outputs), self.core.counters())))
