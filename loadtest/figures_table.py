"""Named figures for people: a row each."""

from __future__ import annotations

from collections.abc import Iterable


def print_figures(rows: Iterable[tuple[str, str]]) -> None:
    """Of each row: what it is, and how much."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, padding=(0, 1), show_header=False)
    for label, value in rows:
        table.add_row(label, value)
    Console().print(table)
