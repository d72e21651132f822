"""Settling and adjusting: first onto the disk, then, in order and until it has it, to the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ledger import Ledger
from tenants.ledger.settlement import Settlement
from tenants.spool.applier import Applier, Figures
from tenants.spool.spool import Spool
from tenants.store import StoreUnavailable

log = logging.getLogger("headrace.spool")

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 1.0
GATHER_S = 0.025
"""How long what was settled may wait for more of it: one reading and one call for all."""
MAX_UNWRITTEN = 10_000
"""Settlements that are kept in memory for a disk that takes nothing."""


class Settler:
    """Owns this gateway's way from a settlement to the ledger; a task of ours goes it.

    The spool is the queue: however long the ledger is away, nothing waits in memory. `start` it, and
    call `save_checkpoint` about every second. `clock` tells Unix time.
    """

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        gather: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(GATHER_S),
    ) -> None:
        self._spool = spool
        self._gather = gather
        self._ledger = ledger
        self._clock = clock
        self._sleep = sleep
        self.figures = Figures()
        self._applier = Applier(spool.folder, ledger, clock, self.figures)
        self._unwritten: deque[Settlement] = deque()
        self.num_dropped = 0
        """Settlements that will be in no spool: too many waited for the disk already."""
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._behind_since: float | None = None
        self._is_away = False
        self._must_repeat = False
        self._task: asyncio.Task[None] | None = None

    @property
    def num_pending(self) -> int:
        """Settlements that the ledger, or the disk, does not have yet."""
        return self._spool.num_lines - self._applier.num_passed + len(self._unwritten)

    @property
    def oldest_pending_s(self) -> float:
        """For how long there has been one such, without a break; 0 if there is none."""
        return 0.0 if self._behind_since is None else max(0.0, self._clock() - self._behind_since)

    @property
    def num_failed_writes(self) -> int:
        return self._spool.num_failed_writes

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def settle(self, settlement: Settlement) -> None:
        """Returns when it is on the disk; the ledger has it soon after.

        Raises `OSError` if the disk did not take it. Then the ledger is told at once, and the disk again
        and again while this process lives. A caller that is cancelled has settled all the same.
        """
        await asyncio.shield(asyncio.ensure_future(self._settle(settlement)))

    async def adjust(self, adjustment: Adjustment) -> None:
        """Returns when it is on the disk and in force.

        Raises `OSError` if the disk did not take it: then nothing has happened. Raises `StoreUnavailable` if
        the ledger does not have it yet: it gets it as soon as it answers. A caller that is cancelled has
        adjusted all the same.
        """
        await asyncio.shield(asyncio.ensure_future(self._adjust(adjustment)))

    def note_outage(self) -> None:
        """The ledger is away, somebody else has seen. Once it is back, call `repeat_recent`."""
        self._is_away = True

    def repeat_recent(self) -> None:
        """The ledger is back and may have lost its last seconds: the last minute is applied again."""
        self._must_repeat, self._is_away = True, False
        self._wake()

    async def save_checkpoint(self) -> None:
        """A disk that does not take it costs repeats only. It stands still until an outage is made up for."""
        if not self._may_repeat:
            with suppress(OSError):
                await self._applier.save()

    async def drained(self) -> None:
        """Returns once nothing is pending."""
        await self._idle.wait()

    async def close(self, limit_s: float) -> int:
        """Waits `limit_s` at most for what is pending; how much of it is left to whoever finds the spool."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.drained()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        num_left = self.num_pending
        if not self._may_repeat:
            with suppress(OSError):
                await self._applier.save(is_final=num_left == 0)
        await self._spool.close()
        return num_left

    async def _settle(self, settlement: Settlement) -> None:
        try:
            await self._spool.append(settlement)
        except OSError:
            if len(self._unwritten) < MAX_UNWRITTEN:
                self._unwritten.append(settlement)
            else:
                self.num_dropped += 1
            with suppress(StoreUnavailable):
                await self._ledger.settle([settlement])
            raise
        finally:
            self._wake()

    async def _adjust(self, adjustment: Adjustment) -> None:
        await self._spool.append(adjustment)
        self._wake()
        await self._ledger.adjust([adjustment])

    def _wake(self) -> None:
        if self._is_behind and self._behind_since is None:
            self._behind_since = self._clock()
            self._idle.clear()
            self._work.set()

    @property
    def _may_repeat(self) -> bool:
        """Whether all behind the checkpoint is to be applied again, now or when the ledger is back."""
        return self._is_away or self._must_repeat

    @property
    def _is_behind(self) -> bool:
        return self._must_repeat or self.num_pending > 0

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            await self._gather()
            delay_s = FIRST_DELAY_S
            while self._is_behind:
                is_written, is_applied = await self._write_again(), await self._apply_some()
                if is_written and is_applied:
                    delay_s = FIRST_DELAY_S
                    continue
                await self._sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_DELAY_S)
            self._behind_since = None
            self._work.clear()
            self._idle.set()

    async def _apply_some(self) -> bool:
        """Whether the ledger took the next ones, or there were none."""
        if self._must_repeat:
            self._must_repeat = False
            self._applier.rewind()
        try:
            await self._applier.apply_some(self._spool.end)
        except StoreUnavailable as error:
            if not self._is_away:
                log.warning("settlements wait for the ledger: %s", error)
            self._is_away = True
            return False
        except Exception:
            log.exception("settlements wait, for something failed")
            return False
        self._must_repeat, self._is_away = self._must_repeat or self._is_away, False
        return True

    async def _write_again(self) -> bool:
        """Whether nothing waits for the disk any more."""
        while self._unwritten:
            try:
                await self._spool.append(self._unwritten[0])
            except OSError:
                return False
            self._unwritten.popleft()
        return True
