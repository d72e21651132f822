"""`headrace bench …`: measures one part at a time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from loadtest.engine_command import engine
from loadtest.gateway_command import gateway
from loadtest.index_command import index
from loadtest.limiter_command import limiter
from loadtest.pressure_command import pressure
from loadtest.routing_command import routing
from loadtest.study_command import batching, chunking, paging

INTERRUPTED = 130


class _Stoppable(click.Group):
    """Whoever asks a bench to end meets the clean-up that Ctrl-C meets, and no status that means a result."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _signals_interrupt():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(f"headrace bench {ctx.invoked_subcommand}: stopped", err=True)
            sys.exit(INTERRUPTED)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@click.group(cls=_Stoppable)
def bench() -> None:
    """Measure one part alone. Exit status 130: stopped before the end.

    Example: headrace bench engine --prompt-tokens 128 --output-tokens 64 --concurrency 8
    """


for command in (engine, gateway, index, limiter, routing, pressure, paging, batching, chunking):
    bench.add_command(command)
