"""What people and programs see of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kernels.gpu_check.row import Row

HEADS = ("part", "check", "found", "ratio", "required", "")
NOTHING_CHECKED: dict[str, Any] = {"checked": False, "rows": [], "failures": []}


def line(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f} {row.unit}"
    required = "" if row.required is None else f"{row.required:g}"
    return (row.part, row.name, row.told, ratio, required, "held" if row.failure is None else "missed")


def as_json(rows: Sequence[Row], *, is_dry: bool, about: Mapping[str, str]) -> dict[str, Any]:
    """A dry run has checked nothing."""
    return {
        "checked": not is_dry,
        **about,
        "rows": [_finite(asdict(row) | {"failure": row.failure}) for row in rows],
        "failures": failures(rows),
    }


def failures(rows: Sequence[Row]) -> list[str]:
    return [row.failure for row in rows if row.failure is not None]


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has neither infinity nor NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
