"""`headrace bench routing`: policies beside each other, on real clusters of tapes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from cluster.routing import Routing
from loadtest.routing_bench.cases import STEP_MS

if TYPE_CHECKING:
    from loadtest.routing_bench.cases import RoutingCase

_POLICIES: tuple[str, ...] = get_args(Routing)
_SHARES = ("hit_rate", "hits_of_ideal")
_DEFAULT_REQUESTS = 800


@click.command(context_settings={"show_default": True})
@click.option(
    "--case",
    "names",
    type=click.Choice(["even", "hot", "trace"]),
    multiple=True,
    help="Repeatable.  [default: even and hot, and trace if --trace is given]",
)
@click.option(
    "--policy", "policies", type=click.Choice(_POLICIES), multiple=True, default=_POLICIES, help="Repeatable."
)
@click.option("--replicas", type=click.IntRange(2, 64), default=4, help="Tapes in each cluster.")
@click.option(
    "--requests",
    type=click.IntRange(1),
    help=f"In each run.  [default: {_DEFAULT_REQUESTS}, all rows of --trace]",
)
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Mooncake's format."
)
@click.option(
    "--step-ms",
    type=click.FloatRange(1, 10_000),
    default=STEP_MS,
    help="Of the tapes; loads come in proportion. Longer ones bear a busy machine.",
)
@click.option("--seed", type=int, default=0, help="Of prompts and arrivals.")
@click.option("--show-commands", is_flag=True, help="Print what would be run for each row, and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def routing(
    names: Sequence[str],
    policies: Sequence[str],
    replicas: int,
    requests: int | None,
    trace: Path | None,
    step_ms: float,
    seed: int,
    show_commands: bool,
    as_json: bool,
) -> None:
    """Compare routing policies: hits, evenness, waiting.

    A new cluster of tapes for each row. Exit status: 0 if token-load kept its
    bounds (even: 90 % of the ideal hits; hot: 80 % of affinity's hits and max/mean in flight
    at most 1.5) and no request failed, 1 if not, 2 if it could not run.

    Example: headrace bench routing --case hot --policy token-load --policy affinity
    """
    from loadtest.routing_bench.comparison import LoadFailed, compare
    from loadtest.routing_bench.verdict import judge
    from loadtest.server_process import CannotStart

    cases = _cases(names, requests, trace, step_ms)
    if show_commands:
        _show_commands(cases, policies, replicas, seed)
        return
    rows: list[dict[str, Any]] = []
    try:
        for row in compare(cases, policies, replicas, seed):
            rows.append(row)
            click.echo(_line(row), err=True)
    except (CannotStart, LoadFailed) as error:
        click.echo(f"headrace bench routing: {error}", err=True)
        sys.exit(2)
    failures = judge(rows)
    _print_table(rows, failures)
    if as_json:
        click.echo(json.dumps({"held": not failures, "failures": failures, "rows": rows}))
    sys.exit(1 if failures else 0)


def _cases(
    names: Sequence[str], requests: int | None, trace: Path | None, step_ms: float
) -> list[RoutingCase]:
    from loadtest.routing_bench.cases import even_case, hot_case, trace_case

    names = names or ["even", "hot", *(["trace"] if trace else [])]
    cases = []
    for name in names:
        if name == "trace":
            if trace is None:
                raise click.UsageError("--case trace needs --trace FILE")
            cases.append(trace_case(trace, requests, step_ms))
        else:
            make = {"even": even_case, "hot": hot_case}[name]
            cases.append(make(requests or _DEFAULT_REQUESTS, step_ms))
    return cases


def _show_commands(cases: Sequence[RoutingCase], policies: Sequence[str], replicas: int, seed: int) -> None:
    from loadtest.routing_bench.comparison import load_flags, serve_flags

    for case in cases:
        for policy in policies:
            click.echo(shlex.join(["headrace", "serve", *serve_flags(case, policy, replicas)]))
        load = ["http://127.0.0.1:8000", "--key-file=.headrace/demo.key", *load_flags(case, seed)]
        click.echo(shlex.join(["headrace", "load", *load]))


def _line(row: dict[str, Any]) -> str:
    return "   ".join(f"{key} {_shown(key, value)}" for key, value in row.items() if key != "statuses")


def _print_table(rows: Sequence[dict[str, Any]], failures: Sequence[str]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.commands.console import table_console

    heads = {
        "case": "case", "policy": "policy", "hit_rate": "hits", "hits_of_ideal": "of ideal",
        "rejected": "rejected", "ttft_p99_ms": "TTFT p99", "in_flight_max_over_mean": "max/mean",
    }  # fmt: skip
    table = Table(box=SIMPLE, padding=(0, 1))
    for key, head in heads.items():
        table.add_column(head, justify="left" if key in ("case", "policy") else "right")
    for row in rows:
        table.add_row(*(_shown(key, row[key]) for key in heads))
    table_console().print(table)
    for failure in failures:
        click.echo(f"missed: {failure}")


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key in _SHARES:
        return f"{value:.1%}"
    if key.endswith("_ms"):
        return f"{value:.0f} ms"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
