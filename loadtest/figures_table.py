"""Named figures for people: a row each."""

from __future__ import annotations

from collections.abc import Iterable


def print_figures(rows: Iterable[tuple[str, str]]) -> None:
    """Of each row: what it is, and how much."""
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.commands.console import table_console

    table = Table(box=SIMPLE, padding=(0, 1), show_header=False)
    for label, value in rows:
        table.add_row(label, value)
    table_console().print(table)
