"""What every loop of requests has in common: its clock, its records, an end, an interrupt."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from loadtest.record import LoadRun, RequestRecord

Send = Callable[[int, float], Awaitable[RequestRecord]]
"""(number of the request, intended send time) → its record."""


class LoadLoop(ABC):
    """Owns the records of one run, and the tasks that make them. A kind of loop says who sends when.

    Requests that were begun are waited for. `clock` is monotonic, in seconds; at most `concurrency`
    requests run at once.
    """

    def __init__(self, send: Send, clock: Callable[[], float], concurrency: int) -> None:
        self._send = send
        self._clock = clock
        self._concurrency = concurrency
        self._started_at = 0.0
        self._num_begun = 0
        self._is_interrupted = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_ended = asyncio.Event()
        self._fault: BaseException | None = None
        self.records: list[RequestRecord] = []

    @property
    def num_running(self) -> int:
        return self._num_begun - len(self.records)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_at

    async def run(self) -> LoadRun:
        """Runs to the end, or to `interrupt`. Raises what a task raised: that is a fault of ours."""
        self._started_at = self._clock()
        self._begin()
        try:
            await self._all_ended.wait()
        finally:
            self.interrupt()  # ours are no longer wanted if we are cancelled ourselves
        if self._fault is not None:
            raise self._fault
        return LoadRun(
            records=tuple(self.records),
            started_at=self._started_at,
            ended_at=self._clock(),
            concurrency=self._concurrency,
            offered_s=self._offered_s(),
            num_unfinished=self.num_running,
            is_interrupted=self._is_interrupted,
        )

    def interrupt(self) -> None:
        """Ends all tasks now; what they were waiting for is unfinished."""
        for task in self._tasks:
            if task.cancel():
                self._is_interrupted = True

    @abstractmethod
    def _begin(self) -> None:
        """Starts at least one task."""

    def _offered_s(self) -> float | None:
        """For how long requests were due; None if that follows from the answers."""
        return None

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    async def _request(self, intended_at: float) -> None:
        """The next request, begun now and taken to its end."""
        number = self._num_begun
        self._num_begun += 1
        self.records.append(await self._send(number, intended_at))

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
            self.interrupt()
        if not self._tasks:
            self._all_ended.set()
