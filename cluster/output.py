"""Where the launcher writes: people's lines to the console, everybody else's to a log."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner


def own_console() -> Console:
    """A console on stdout as it is now; it stays there when stdout is sent to the log."""
    return Console(file=os.fdopen(os.dup(sys.stdout.fileno()), "w"), highlight=False)


def send_output_to(path: Path) -> None:
    """Ray prints about its own workers, harmless and long; people read the stages on the console."""
    with open(path, "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


def waiting_for(console: Console, text: str) -> Live:
    """A spinner while the block runs. Unlike rich's own status it leaves stdout and stderr alone: what Ray
    prints there belongs to the log.
    """
    spinner = Spinner("dots", f"{text} …")
    return Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
