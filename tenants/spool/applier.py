"""From a spool to the ledger: reads on where it was, and knows how far back it must go after an outage."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ledger import TOMBSTONE_S, Ledger
from tenants.ledger.settlement import Settlement
from tenants.spool.folder import read_checkpoint, write_checkpoint
from tenants.spool.line import Entry, began_at, name_of
from tenants.spool.reading import Position, SpoolLine, read_lines
from tenants.store import CorruptRecord

log = logging.getLogger("headrace.spool")

BATCH = 256
REPEAT_S = 60.0
"""What was applied within this time before an outage is applied again: the ledger may come back older."""
_MARK_EVERY_S = 1.0


class Applying(Protocol):
    """What a `Ledger` does with entries. Both may raise `StoreUnavailable`."""

    async def settle(self, settlements: Sequence[Settlement]) -> object: ...

    async def adjust(self, adjustments: Sequence[Adjustment]) -> object: ...


class Checkpoint(NamedTuple):
    """How far it had been applied at a time."""

    at: float
    position: Position
    num_lines: int


class Figures:
    """Lines that were not applied, and why."""

    def __init__(self) -> None:
        self.num_corrupt = 0
        """Damaged in the spool."""
        self.num_expired = 0
        """Older than the ledger's memory of what it has applied: whether it has, nobody can tell."""
        self.num_refused = 0
        """Their tenant's part of the ledger is damaged."""


class Applier:
    """Owns how far one spool has been applied. `clock` tells Unix time, of which lines expire too.

    The checkpoint trails what was applied by `REPEAT_S`; whoever goes on after this process, or after an
    outage of the ledger, begins there. Repeats are harmless, for the ledger knows requests by id.
    """

    def __init__(self, folder: Path, ledger: Ledger, clock: Callable[[], float], figures: Figures) -> None:
        """Reads the checkpoint."""
        self._folder = folder
        self._ledger = ledger
        self._clock = clock
        self._figures = figures
        self._now = Checkpoint(clock(), read_checkpoint(folder), 0)
        self._checkpoint = self._saved = self._now
        self._marks: deque[Checkpoint] = deque()
        self._told = self._now.position

    @property
    def num_passed(self) -> int:
        """Lines behind us since the first checkpoint."""
        return self._now.num_lines

    async def apply_some(self, end: Position | None = None) -> int:
        """Applies the next lines up to `end`; how many, 0 if there are none.

        Raises `StoreUnavailable`; then they are still to be applied.
        """
        begin = self._now.position
        lines = await asyncio.to_thread(_read_batch, self._folder, begin, end)
        if not lines:
            return 0
        oldest = self._clock() - TOMBSTONE_S
        whole = [line.entry for line in lines if line.entry is not None]
        young = [entry for entry in whole if began_at(entry) >= oldest]
        self._figures.num_refused += await apply_apart(self._ledger, young)
        self._tell_damage(lines, oldest)
        self._pass(lines)
        return len(lines)

    def rewind(self) -> None:
        """The ledger was away: all behind the checkpoint is applied again."""
        self._now = self._checkpoint
        self._marks.clear()

    async def save(self, *, is_final: bool = False) -> None:
        """Writes the checkpoint if it has moved; `is_final`: right up to here."""
        self._advance()
        mark = self._now if is_final else self._checkpoint
        if mark.position != self._saved.position:
            await asyncio.to_thread(write_checkpoint, self._folder, mark.position)
            self._saved = mark

    def _tell_damage(self, lines: Sequence[SpoolLine], oldest: float) -> None:
        """Once a line, however often it is passed."""
        for line in lines:
            if line.end <= self._told:
                continue
            self._told = line.end
            if line.entry is None:
                self._figures.num_corrupt += 1
                log.error("a line of a spool is damaged and left out: %s", line.place)
            elif began_at(line.entry) < oldest:
                self._figures.num_expired += 1
                log.error("%s is too old to be settled safely", name_of(line.entry))

    def _pass(self, lines: Sequence[SpoolLine]) -> None:
        now = self._clock()
        self._now = Checkpoint(now, lines[-1].end, self._now.num_lines + len(lines))
        if len(self._marks) > 1 and now - self._marks[-2].at < _MARK_EVERY_S:
            self._marks.pop()
        self._marks.append(self._now)

    def _advance(self) -> None:
        while self._marks and self._marks[0].at <= self._clock() - REPEAT_S:
            self._checkpoint = self._marks.popleft()


async def apply_apart(ledger: Applying, entries: Sequence[Entry]) -> int:
    """One by one where they can't be applied together: a tenant's damage is not the others'.

    How many were refused. Raises `StoreUnavailable` if the ledger is away.
    """
    try:
        await _apply(ledger, entries)
    except (CorruptRecord, ValueError) as error:
        if len(entries) == 1:
            log.error("%s cannot be settled: %s", name_of(entries[0]), error)
            return 1
        return sum([await apply_apart(ledger, [entry]) for entry in entries])
    return 0


async def _apply(ledger: Applying, entries: Sequence[Entry]) -> None:
    """Of which kind which comes first is no matter to the ledger."""
    settlements = [entry for entry in entries if isinstance(entry, Settlement)]
    adjustments = [entry for entry in entries if isinstance(entry, Adjustment)]
    if settlements:
        await ledger.settle(settlements)
    if adjustments:
        await ledger.adjust(adjustments)


def _read_batch(folder: Path, begin: Position, end: Position | None) -> list[SpoolLine]:
    return list(islice(read_lines(folder, begin, end), BATCH))
