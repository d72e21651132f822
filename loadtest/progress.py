"""A line on stderr now and then, so that who waits knows what for."""

from __future__ import annotations

import time

import click


class Progress:
    """At most one line in `every_s`. Begins silent: what is over at once needs no line."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._shown = time.monotonic()

    def tell(self, line: str) -> None:
        if time.monotonic() - self._shown > self._every_s:
            self._shown = time.monotonic()
            click.echo(line, err=True)
