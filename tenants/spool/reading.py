"""Reading a spool: from a position on, line by line, past what is damaged.

A spool is a folder with one file of lines for each UTC day on which it was written. Its last line may be
torn, for its writer died in the middle of it: nobody was told that it is there, so it is left out. Any
other damage is somebody's loss, and told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, NamedTuple

import msgspec

from tenants.ledger.windows import day_name, day_of, to_us
from tenants.spool.line import MAX_LINE_BYTES, CorruptLine, Entry, decode

SUFFIX = ".jsonl"


class Position(NamedTuple):
    """Between two lines. Sorts as the lines do."""

    day: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    """Bytes."""


START = Position("", 0)


class SpoolLine(NamedTuple):
    entry: Entry | None
    """None: it is corrupt."""
    place: str
    """For people: which line, and what is wrong with it."""
    end: Position


def utc_day(unix_s: float) -> str:
    """`2026-11-30`."""
    return day_name(day_of(to_us(unix_s)))


def days_of(folder: Path) -> list[str]:
    """Days on which the spool was written, in order; none if there is no such folder."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))


def read_lines(folder: Path, begin: Position = START, end: Position | None = None) -> Iterator[SpoolLine]:
    """Lines from `begin` up to `end`, or all that are whole. A segment that is removed meanwhile has none."""
    days = days_of(folder)
    for day in (day for day in days if day >= begin.day and (end is None or day <= end.day)):
        try:
            segment = open(folder / f"{day}{SUFFIX}", "rb")  # noqa: SIM115  closed below
        except FileNotFoundError:
            continue
        with segment:
            segment.seek(begin.offset if day == begin.day else 0)
            limit = end.offset if end is not None and day == end.day else None
            yield from _read_segment(segment, day, limit, is_last=day == days[-1])


def _read_segment(segment: IO[bytes], day: str, limit: int | None, *, is_last: bool) -> Iterator[SpoolLine]:
    offset = segment.tell()
    while limit is None or offset < limit:
        raw = segment.readline(MAX_LINE_BYTES)
        is_torn = len(raw) < MAX_LINE_BYTES and not raw.endswith(b"\n")
        if not raw or (is_torn and is_last):
            return
        place = f"{Path(segment.name).parent.name}/{day}{SUFFIX}, byte {offset}"
        offset += len(raw)
        yield _line(raw, place, Position(day, offset))


def _line(raw: bytes, place: str, end: Position) -> SpoolLine:
    try:
        return SpoolLine(decode(raw), place, end)
    except CorruptLine as error:
        return SpoolLine(None, f"{place}: {error}", end)
