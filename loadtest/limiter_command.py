"""`headrace bench limiter`: its options, and what people see of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from loadtest.figures_table import print_figures
from loadtest.progress import ProgressLine

if TYPE_CHECKING:
    from loadtest.bench_limiter import LimiterLoad

_LABELS = {
    "decisions": "decisions of each kind",
    "wrong": "decisions that were wrong",
    "rate_per_s": "decisions/s, a round trip each",
    "p50_ms": "... p50, ms",
    "p99_ms": "... p99, ms",
    "server_mean_ms": "... in the server, mean, ms",
    "round_trips": "... round trips",
    "coalesced_per_s": "decisions/s, one pipeline a tick",
    "coalesced_p50_ms": "... p50, ms",
    "coalesced_p99_ms": "... p99, ms",
    "settles_per_s": "settlements/s, 100 a pipeline",
    "bytes_per_tenant": "bytes a tenant",
    "bytes_per_settled_request": "bytes a settled request, for 48 h",
}


@click.command(context_settings={"show_default": True})
@click.option("--decisions", type=click.IntRange(100, 1_000_000), default=20_000, help="Of each kind.")
@click.option("--tenants", type=click.IntRange(1, 100_000), default=100, help="They take turns.")
@click.option("--processes", type=click.IntRange(1, 64), default=2, help="As many gateways.")
@click.option("--concurrency", type=click.IntRange(1, 32), default=16, help="Decisions at once in each.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def limiter(as_json: bool, **given: Any) -> None:
    """The ledger alone: a Redis of its own, asked for reservations by several processes.

    Exit status: 0 every answer right, 3,000 decisions/s with a round trip each, 6,000 with one pipeline a
    tick, the server's mean within 0.1 ms; 1 a bound missed (named on stderr); 2 could not run.

    Example: headrace bench limiter --json
    """
    from concurrent.futures.process import BrokenProcessPool
    from threading import BrokenBarrierError

    from redis.exceptions import RedisError

    from cluster.redis_server import RedisServerError
    from loadtest.bench_limiter import LimiterLoad
    from tenants.store import StoreUnavailable

    load = LimiterLoad(
        num_decisions=given["decisions"],
        num_tenants=given["tenants"],
        num_processes=given["processes"],
        concurrency=given["concurrency"],
    )
    try:
        figures = _measure(load)
    except ExceptionGroup as errors:
        _fail(errors.exceptions[0])
    except (RedisServerError, StoreUnavailable, RedisError, OSError) as error:
        _fail(error)
    except (BrokenProcessPool, BrokenBarrierError):
        _fail(RuntimeError("a process of the bench ended too early"))
    shown = (key for key in figures if key != "missed")  # told on stderr
    print_figures((_LABELS.get(key, key), f"{figures[key]}") for key in shown)
    if as_json:
        click.echo(json.dumps(figures))
    for bound in figures["missed"]:
        click.echo(f"headrace bench limiter: missed: {bound}", err=True)
    sys.exit(0 if figures["held"] else 1)


def _fail(error: Exception) -> None:
    click.echo(f"headrace bench limiter: {error}", err=True)
    sys.exit(2)


def _measure(load: LimiterLoad) -> dict[str, Any]:
    from loadtest.bench_limiter import LimiterBench
    from loadtest.own_redis import on_own_redis

    return on_own_redis(lambda client, url: LimiterBench(client, url, load, ProgressLine().tell).run())
