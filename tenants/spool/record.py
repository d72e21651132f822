"""All spools of a state directory as one record: every request and adjustment once, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from pathlib import Path

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.settlement import Settlement
from tenants.spool.folder import spools
from tenants.spool.line import Entry, told_at
from tenants.spool.reading import START, SUFFIX, Position, days_of, read_lines

_RequestKey = tuple[str, str]
_WHOLE = 1 << 62
"""Behind the end of any segment."""


class SpoolRecord:
    """Read only, while gateways write or after they have ended. `bases` are folders of spools.

    `on_corrupt` is told the place of each damaged line, once.
    """

    def __init__(self, *bases: Path, on_corrupt: Callable[[str], None] = lambda place: None) -> None:
        self._bases = bases
        self._on_corrupt = on_corrupt

    def settlements(self, first_day: str = "") -> Iterator[Settlement]:
        """What `entries` tells of requests."""
        return _requests(self.entries(first_day))

    def entries(self, first_day: str = "") -> Iterator[Entry]:
        """What was written since `first_day`, day by day, and in a day by when it ended or was adjusted.

        Of requests: what a reaper settled and the gateway itself after all counts once, as the gateway has
        it; what was reaped twice counts once.
        """
        ends = {folder: _end(folder) for base in self._bases for folder in spools(base)}
        whole = self._lines(ends, first_day, self._on_corrupt)
        reaped = {_key(one) for one in _requests(whole) if _is_reaped(one)}
        corrected = {
            _key(one)
            for one in (_requests(self._lines(ends, first_day)) if reaped else ())
            if not _is_reaped(one) and _key(one) in reaped
        }
        open_keys = reaped - corrected
        for entry in self._lines(ends, first_day):
            if isinstance(entry, Adjustment) or not _is_reaped(entry):
                yield entry
            elif _key(entry) in open_keys:
                open_keys.discard(_key(entry))
                yield entry

    def _lines(
        self,
        ends: dict[Path, Position],
        first_day: str,
        on_corrupt: Callable[[str], None] = lambda place: None,
    ) -> Iterator[Entry]:
        """Day by day, so that only the segments of one day are open together."""
        days = {folder: set(days_of(folder)) for folder in ends}
        for day in sorted(set().union(*days.values())):
            if day >= first_day:
                written = [folder for folder in ends if day in days[folder]]
                streams = [_of_day(folder, day, ends[folder], on_corrupt) for folder in written]
                yield from merge(*streams, key=told_at)


def _of_day(folder: Path, day: str, end: Position, on_corrupt: Callable[[str], None]) -> Iterator[Entry]:
    for line in read_lines(folder, Position(day, 0), min(end, Position(day, _WHOLE))):
        if line.entry is None:
            on_corrupt(line.place)
        else:
            yield line.entry


def _requests(entries: Iterator[Entry]) -> Iterator[Settlement]:
    return (entry for entry in entries if isinstance(entry, Settlement))


def _end(folder: Path) -> Position:
    """Behind its last line now, so that all passes see the same lines."""
    days = days_of(folder)
    try:
        return Position(days[-1], (folder / f"{days[-1]}{SUFFIX}").stat().st_size) if days else START
    except FileNotFoundError:  # it has just become too old
        return START


def _is_reaped(settlement: Settlement) -> bool:
    return settlement.outcome == "reaped"


def _key(settlement: Settlement) -> _RequestKey:
    return settlement.tenant_id, settlement.request_id
