"""Where tables for people go: a terminal breaks them to its width, a file or a pipe does not."""

from __future__ import annotations

from rich.console import Console

_UNBROKEN = 300


def table_console(least_width: int = 0) -> Console:
    """On stdout as it is now. `least_width` is for tables that say nothing any more in less."""
    console = Console()
    return Console(width=max(console.width, least_width) if console.is_terminal else _UNBROKEN)
