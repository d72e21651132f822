"""REST objects as people read them. Money is in micro-units, and beside it in units of 10^6 of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNBROKEN = 10_000
"""Columns of a page that is no terminal: what reads it wants one line a row."""
MONEY = frozenset(
    {"budget_day", "budget_month", "cost", "amount", "input_price", "cached_input_price", "output_price"}
)


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Numbers stand to the right."""
    cells = [list(row) for row in rows]
    table = Table(box=SIMPLE, padding=(0, 1))
    for column, heading in enumerate(headings):
        is_number = any(isinstance(row[column], int) and not isinstance(row[column], bool) for row in cells)
        table.add_column(heading, justify="right" if is_number else "left")
    for row in cells:
        table.add_row(*(Text(shown(cell)) for cell in row))
    _console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """One object: a line a field."""
    table = Table(box=SIMPLE, padding=(0, 1), show_header=False)
    for name, value in fields.items():
        table.add_row(name, Text(shown_field(name, value)))
    _console().print(table)


def shown_field(name: str, value: object) -> str:
    """`name` may be a path, as in `overrides.budget_day`."""
    name = name.rpartition(".")[2]
    if name in MONEY and isinstance(value, int):
        return money(value)
    if name.endswith("_at") and isinstance(value, int | float):
        return moment(value)
    return shown(value)


def shown(value: object) -> str:
    """One line without anything that a terminal would obey."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return _plain(", ".join(f"{name}={shown_field(name, held)}" for name, held in value.items())) or "-"
    if isinstance(value, list | tuple):
        return _plain(",".join(map(str, value))) or "-"
    return _plain(str(value))


def money(micro_units: int) -> str:
    """`2500000 (2.5)`: micro-units (units)."""
    return f"{micro_units} ({units(micro_units)})"


def units(micro_units: int) -> str:
    """Exact: `2.5` of 2500000 micro-units."""
    text = f"{Decimal(micro_units) / 10**6:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNBROKEN)
