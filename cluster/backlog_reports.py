"""When a gateway tells its replicas what waits at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from cluster.backlog import Backlog, bounded
from cluster.link import Report

REPORT_EVERY_S = 0.1


class BacklogReports:
    """Owns the last report, and what is to be in the next; which one each replica has is known to its link.

    `send` gets a report at once, then at most every `every_s`, and only what differs from the one before.
    """

    def __init__(self, send: Callable[[Report], None], every_s: float = REPORT_EVERY_S) -> None:
        self._send = send
        self._every_s = every_s
        self._due_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._next = Report(())
        self.last = self._next

    def tell(self, backlogs: Iterable[Backlog]) -> None:
        """May be called as often as the backlog changes; costs O(tenants log tenants)."""
        self._next = Report(bounded(backlogs))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._due_s:
                self._tell()
            else:
                self._timer = loop.call_at(self._due_s, self._tell)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self._timer = None
        if self._next != self.last:
            self.last = self._next
            self._due_s = asyncio.get_running_loop().time() + self._every_s
            self._send(self.last)
