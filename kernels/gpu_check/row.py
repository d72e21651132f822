"""What one check found, and whether that is enough. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One check. It holds if `failure` is None."""

    part: str
    """bench, graph, engine, parity."""
    name: str
    told: str = ""
    """What was measured or compared, in words."""
    ratio: float | None = None
    """To what `unit` says."""
    unit: str = ""
    required: float | None = None
    """The least ratio that is enough; None: it is told, and not judged."""
    fault: str | None = None
    """Why the check could not hold, whatever was measured."""

    @property
    def failure(self) -> str | None:
        """One line; None: it holds. A ratio that was not measured, or is NaN, is none that is enough."""
        if self.fault is not None:
            return f"{self.part} {self.name}: {self.fault}"
        if self.required is None:
            return None
        if self.ratio is None:
            return (
                f"{self.part} {self.name}: not measured, at least {self.required:g} {self.unit} is required"
            )
        if not self.ratio >= self.required:
            return f"{self.part} {self.name}: {self.ratio:.3g} {self.unit}, not {self.required:g}"
        return None


def that_it_ran(row: Row) -> Row:
    """What a dry run may say of a row: nothing of what it measured."""
    return Row(row.part, row.name, "ran" if row.fault is None else "", fault=row.fault)
