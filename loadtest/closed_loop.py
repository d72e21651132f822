"""A closed loop: so many users, each of whom sends the next request when the last one has ended.

What it offers follows what the server achieves, so it finds throughput, not the limit of latency.
"""

from __future__ import annotations

from collections.abc import Callable

from loadtest.loop import LoadLoop, Send


class ClosedLoop(LoadLoop):
    """`concurrency` users send `num_requests` in all, or until `duration_s` has passed.

    A request is due when its user is free, so the time that the client itself needs counts as latency.
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
        super().__init__(send, clock, concurrency)
        self._num_requests = num_requests
        self._duration_s = duration_s

    def _begin(self) -> None:
        for _ in range(self._concurrency):
            self._start(self._be_a_user())

    async def _be_a_user(self) -> None:
        while self._is_more_due():
            await self._request(self._clock())

    def _is_more_due(self) -> bool:
        if self._num_requests is not None:
            return self._num_begun < self._num_requests
        return self._duration_s is not None and self.elapsed_s < self._duration_s
