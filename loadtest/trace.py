"""A trace of real requests in Mooncake's format: when each came, how long it was, what it shares.

One JSON object a line: `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and
`hash_ids`, one for each 512 tokens of the prompt: the same id, the same text.
Source: kvcache-ai/Mooncake, FAST'25 traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec

TRACE_BLOCK_TOKENS = 512

_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
_Id = Annotated[int, msgspec.Meta(ge=0)]


class TraceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request. The last block may be shorter than the others."""

    timestamp: Annotated[int, msgspec.Meta(ge=0)]
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[_Id, ...]

    def __post_init__(self) -> None:
        num_blocks = -(-self.input_length // TRACE_BLOCK_TOKENS)
        if len(self.hash_ids) != num_blocks:
            raise ValueError(
                f"input_length {self.input_length} takes {num_blocks} hash_ids, not {len(self.hash_ids)}"
            )


_decoder = msgspec.json.Decoder(TraceRow)


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """All rows, in the file's order. Raises ValueError naming the line that is wrong."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    rows = tuple(_parsed(lines, path))
    if not rows:
        raise ValueError(f"{path} holds no row")
    return rows


def _parsed(lines: Sequence[bytes], path: Path) -> Iterator[TraceRow]:
    latest = 0
    for number, line in enumerate(lines, start=1):
        try:
            row = _decoder.decode(line)
            if row.timestamp < latest:
                raise ValueError(f"timestamp {row.timestamp} is before the line above, {latest}")
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
        latest = row.timestamp
        yield row


def trace_arrivals(
    rows: Sequence[TraceRow], *, tick_s: float, time_scale: float, seed: int
) -> tuple[float, ...]:
    """When each row is due, ascending, in seconds from the first row's timestamp.

    Timestamps were rounded down to ticks of `tick_s`, so that whole groups of rows seem to come at once:
    each group is spread evenly at random inside its tick. `time_scale` seconds pass for one of the trace.
    """
    random = Random(f"{seed}:ticks")
    times: list[float] = []
    for timestamp, group in groupby(rows, key=lambda row: row.timestamp):
        begins = (timestamp - rows[0].timestamp) / 1000
        times += [begins + tick_s * random.random() for _ in group]
    return tuple(time * time_scale for time in sorted(times))
