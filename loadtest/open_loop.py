"""An open loop: requests are due at times fixed beforehand, whatever the server does meanwhile.

Users do not wait for each other, so only this finds the load at which a server's latency breaks down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from loadtest.loop import LoadLoop, Send


class OpenLoop(LoadLoop):
    """Sends one request at each of `arrivals`, ascending seconds from the start, spread over `offered_s`.

    While `concurrency` requests run, those that are due wait for one to end, in order; none is dropped.
    Latency counts from when a request was due, so what the client delays is in it.
    """

    def __init__(
        self,
        send: Send,
        clock: Callable[[], float],
        *,
        arrivals: Sequence[float],
        offered_s: float,
        concurrency: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(send, clock, concurrency)
        self._arrivals = arrivals
        self._span_s = offered_s
        self._sleep = sleep
        self._places = asyncio.Semaphore(concurrency)

    def _begin(self) -> None:
        self._start(self._send_all())

    def _offered_s(self) -> float:
        return min(self._span_s, self.elapsed_s)

    async def _send_all(self) -> None:
        for arrival in self._arrivals:
            due = self._started_at + arrival
            if (wait_s := due - self._clock()) > 0:
                await self._sleep(wait_s)
            await self._places.acquire()
            self._start(self._send_one(due))

    async def _send_one(self, due: float) -> None:
        try:
            await self._request(due)
        finally:
            self._places.release()
