"""What people and programs see of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from kernels.parity.runner import Row


def as_json(row: Row) -> dict[str, Any]:
    """JSON has no infinity: an error that is none is null."""
    return {name: None if value in (math.inf, -math.inf) else value for name, value in asdict(row).items()}


def lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """For each op and oracle: op, against, cases, outputs, the worst relative error, how many rows of these
    were near ties, how many outputs missed."""
    told: list[tuple[str, ...]] = []
    for op, against in dict.fromkeys((row.op, row.against) for row in rows):
        own = [row for row in rows if (row.op, row.against) == (op, against)]
        num_cases = len({row.case for row in own})
        worst = max(row.relative for row in own)
        num_missed = sum(row.failure is not None for row in own)
        near_ties = str(sum(row.near_ties for row in own) or "")
        told.append((op, against, str(num_cases), str(len(own)), f"{worst:.1e}", near_ties, str(num_missed)))
    return told


def changed(rows: Iterable[Row]) -> list[Row]:
    """Of rows against stored outputs: within the bounds, but not the same."""
    return [row for row in rows if row.against == "stored" and row.failure is None and row.index is not None]
