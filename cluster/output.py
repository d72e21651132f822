"""Where the launcher writes: people's lines to the console, everybody else's to a log."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console


def own_console() -> Console:
    """A console on stdout as it is now; it stays there when stdout is sent to the log."""
    return Console(file=os.fdopen(os.dup(sys.stdout.fileno()), "w"), highlight=False)


def send_output_to(path: Path) -> None:
    """Ray prints about its own workers, harmless and long; people read the stages on the console."""
    with open(path, "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
