"""What people and programs see of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kernels.audit.verdict import Row

HEADS = (
    "op", "configuration", "kernel", "registers", "spill", "KiB", "warps", "tensor cores", "outside",
    "loop loads", "conflicts", "seen",
)  # fmt: skip
WIDTH = 170
"""That the table needs, whatever the terminal has: wrapped lines can still be read, cut ones can't."""


def as_json(row: Row) -> dict[str, Any]:
    """Flat, but for what is a table itself."""
    told: dict[str, Any] = {"op": row.op, "configuration": row.configuration, "arch": row.arch}
    if row.facts is not None:
        facts = asdict(row.facts)
        occupancy = facts.pop("occupancy")
        told |= facts | {
            "programs_a_processor": occupancy["programs"],
            "occupancy": occupancy["share"],
            "limited_by": occupancy["limited_by"],
            "conflict_degree": row.facts.conflict_degree,
        }
    return told | {"failures": list(row.failures), "note": row.note}


def line(row: Row) -> tuple[str, ...]:
    """As `HEADS` says: bytes of spills and KiB of shared memory; the share of its warps that a processor
    holds, and what limits them; the share of floating-point work outside tensor cores; widths in bits."""
    facts = row.facts
    seen = "missed" if row.failures else row.note or "ok"
    if facts is None:
        return (row.op, row.configuration, *[""] * (len(HEADS) - 3), seen)
    return (
        row.op,
        row.configuration,
        facts.kernel,
        str(facts.registers),
        str(facts.spill_bytes),
        f"{facts.shared_bytes / 1024:.1f}",
        f"{facts.occupancy.share:.0%} {facts.occupancy.limited_by}",
        _counts(facts.tensor),
        "" if not facts.tensor or facts.share_outside is None else f"{facts.share_outside:.1%}",
        _counts(facts.loop_accesses),
        str(facts.conflict_degree),
        seen,
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
