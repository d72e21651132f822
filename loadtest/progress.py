"""A line on stderr now and then, so that who waits knows what for."""

from __future__ import annotations

import time

import click


class ProgressLine:
    """At most one line in `every_s`, and none twice. Begins silent: what is over at once needs no line."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._shown = time.monotonic()
        self._last = ""

    def tell(self, line: str) -> None:
        if line != self._last and time.monotonic() - self._shown > self._every_s:
            self._shown, self._last = time.monotonic(), line
            click.echo(line, err=True)
