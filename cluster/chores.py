"""What a gateway does in the background, whether or not whoever asked for it still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

from cluster.backlog_reports import REPORT_EVERY_S
from cluster.link import Abort, LinkDown
from cluster.link_state import LinkState

LeaveAborts = Callable[[int, tuple[Abort, ...]], Awaitable[None]]
"""Leaves aborts for an incarnation that cannot be called any more, where it reads them by itself."""


async def nowhere(incarnation: int, aborts: tuple[Abort, ...]) -> None: ...


class Chores:
    """Owns the tasks of work that must outlive the request that asked for it, cancelled client or not."""

    def __init__(self, leave_aborts: LeaveAborts) -> None:
        self._leave_aborts = leave_aborts
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def abort(self, link: LinkState, *aborts: Abort) -> None:
        """A replica that is not listed cannot be called any more; its stream may still be there."""
        hello = link.hello
        if link.is_delisted:
            if hello is not None:
                await self._leave_aborts(hello.incarnation, aborts)
            return
        try:
            await link.calls.abort(aborts)
        except LinkDown:
            if hello is not None:
                await self._leave_aborts(hello.incarnation, aborts)

    async def report(self, link: LinkState) -> None:
        """Until the replica has what it is to be told: what is lost is sent again, none overtakes another."""
        if link.is_being_told:
            return
        link.is_being_told = True
        try:
            while link.hello is not None and not link.is_delisted and link.told != link.to_tell:
                await self._report_once(link)
                if link.told is None:
                    await asyncio.sleep(REPORT_EVERY_S)
        finally:
            link.is_being_told = False

    async def _report_once(self, link: LinkState) -> None:
        """A call that failed may have been heard, and one that outlives its stream by the next one."""
        hello, report, told = link.hello, link.to_tell, None
        with suppress(LinkDown):  # its stream tells, too
            await link.calls.report(report)
            told = report if link.hello is hello else None
        link.told = told
