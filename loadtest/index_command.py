"""`headrace bench index`: its options, and what people see of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from loadtest.figures_table import print_figures
from loadtest.progress import ProgressLine

if TYPE_CHECKING:
    from loadtest.bench_index import IndexLoad

_LABELS = {
    "blocks": "blocks in the index",
    "entries": "entries, one for every 4th block",
    "prompt_blocks": "blocks of a prompt",
    "wrong_lookups": "look-ups answered wrongly",
    "lookup_p50_ms": "look-up p50, ms",
    "lookup_p99_ms": "look-up p99, ms",
    "server_mean_ms": "in the server, mean, ms",
    "commands_per_lookup": "commands a look-up",
    "reads_per_lookup": "entries read a look-up",
    "events_per_s": "events/s one replica can publish",
    "bytes_per_block": "bytes a block",
    "bytes_per_entry": "bytes an entry",
}


@click.command(context_settings={"show_default": True})
@click.option("--blocks", type=click.IntRange(1), default=1_000_000, help="KV blocks of 16 tokens, at least.")
@click.option("--replicas", type=click.IntRange(1, 256), default=4, help="Each holds a part of every prompt.")
@click.option("--prompt-blocks", type=click.IntRange(4, 8192), default=256, help="Blocks of a prompt.")
@click.option("--lookups", type=click.IntRange(1, 1_000_000), default=2000, help="One after the other.")
@click.option("--seed", type=int, default=0, help="Blocks, holders and look-ups follow from it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def index(as_json: bool, **given: Any) -> None:
    """The prefix index alone: a Redis of its own, filled, then asked.

    Exit status: 0 every answer right, half of the look-ups within 0.7 ms, the server's mean within 0.3 ms;
    1 a bound missed; 2 could not run.

    Example: headrace bench index --blocks 1000000 --json
    """
    from redis.exceptions import RedisError

    from cluster.index.prefix_index import IndexUnavailable
    from cluster.redis_server import RedisServerError
    from loadtest.bench_index import IndexLoad

    load = IndexLoad(
        min_blocks=given["blocks"],
        num_replicas=given["replicas"],
        prompt_blocks=given["prompt_blocks"],
        num_lookups=given["lookups"],
        seed=given["seed"],
    )
    try:
        figures = _measure(load)
    except (RedisServerError, IndexUnavailable, RedisError, OSError) as error:
        click.echo(f"headrace bench index: {error}", err=True)
        sys.exit(2)
    print_figures((_LABELS.get(key, key), f"{value}") for key, value in figures.items())
    if as_json:
        click.echo(json.dumps(figures))
    sys.exit(0 if figures["held"] else 1)


def _measure(load: IndexLoad) -> dict[str, Any]:
    from loadtest.bench_index import IndexBench
    from loadtest.own_redis import on_own_redis

    return on_own_redis(lambda client, url: IndexBench(client, load, ProgressLine().tell).run())
