"""`headrace bench …`: measures one part at a time."""

from __future__ import annotations

import click

from loadtest.engine_command import engine
from loadtest.gateway_command import gateway
from loadtest.index_command import index
from loadtest.pressure_command import pressure
from loadtest.routing_command import routing
from loadtest.study_command import batching, chunking, paging


@click.group()
def bench() -> None:
    """Measure one part alone.

    Example: headrace bench engine --prompt-tokens 128 --output-tokens 64 --concurrency 8
    """


for command in (engine, gateway, index, routing, pressure, paging, batching, chunking):
    bench.add_command(command)
