"""A closed loop: so many users, each of whom sends the next request when the last one has ended.

What it offers follows what the server achieves, so it finds throughput, not the limit of latency.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loadtest.record import RequestRecord, Run

Send = Callable[[int, float], Awaitable[RequestRecord]]
"""(number of the request, intended send time) → its record."""


class ClosedLoop:
    """Runs `send` `concurrency` times at once: `num_requests` times, or until `duration_s` has passed.

    Requests that were begun are waited for. A request is due when its user is free, so the time that
    the client itself needs counts as latency.
    """

    def __init__(
        self,
        send: Send,
        clock: Callable[[], float],
        *,
        concurrency: int,
        num_requests: int | None = None,
        duration_s: float | None = None,
    ) -> None:
        if (num_requests is None) == (duration_s is None):
            raise ValueError("exactly one of num_requests and duration_s must be given")
        self._send = send
        self._clock = clock
        self._concurrency = concurrency
        self._num_requests = num_requests
        self._duration_s = duration_s
        self._started_at = 0.0
        self._num_begun = 0
        self._is_interrupted = False
        self._users: list[asyncio.Task[None]] = []
        self.records: list[RequestRecord] = []

    @property
    def num_running(self) -> int:
        return self._num_begun - len(self.records)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_at

    async def run(self) -> Run:
        """Runs to the end, or to `interrupt`."""
        self._started_at = self._clock()
        self._users = [asyncio.create_task(self._be_a_user()) for _ in range(self._concurrency)]
        try:
            ends = await asyncio.gather(*self._users, return_exceptions=True)
        finally:
            self.interrupt()  # ours are no longer wanted if we are cancelled ourselves
        for end in ends:
            if isinstance(end, Exception):
                raise end
        return Run(
            records=tuple(self.records),
            started_at=self._started_at,
            ended_at=self._clock(),
            concurrency=self._concurrency,
            num_unfinished=self.num_running,
            is_interrupted=self._is_interrupted,
        )

    def interrupt(self) -> None:
        """Ends all users now; what they were waiting for is unfinished."""
        for user in self._users:
            if user.cancel():
                self._is_interrupted = True

    async def _be_a_user(self) -> None:
        while self._is_more_due():
            number = self._num_begun
            self._num_begun += 1
            self.records.append(await self._send(number, self._clock()))

    def _is_more_due(self) -> bool:
        if self._num_requests is not None:
            return self._num_begun < self._num_requests
        return self._duration_s is not None and self.elapsed_s < self._duration_s
