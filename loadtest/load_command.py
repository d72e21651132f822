"""`headrace load`: puts a load on an OpenAI-compatible server and measures it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

_positive = click.FloatRange(0, min_open=True)


@click.command(context_settings={"show_default": True})
@click.argument("url")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    help="Requests at once; in an open loop at most so many, others wait.  [default: 8; open: 1000]",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 10_000, min_open=True),
    help="Open loop: so many requests a second are due, at random (Poisson), whatever the server does.",
)
@click.option(
    "--requests", type=click.IntRange(1), help="How many in all.  [default: 100, or all rows of --trace]"
)
@click.option("--duration", type=_positive, help="Or: begin requests for so many seconds.")
@click.option(
    "--workload",
    type=click.Choice(["random", "shared-prefix"]),
    default="random",
    help="Prompts with nothing in common, or with few long beginnings.",
)
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=128, help="Exact for --completions; words for --chat."
)
@click.option("--prefixes", type=click.IntRange(1, 10_000), default=20, help="Of shared-prefix.")
@click.option("--prefix-tokens", type=click.IntRange(1), default=1000, help="Length of each prefix.")
@click.option("--suffix-tokens", type=click.IntRange(1), default=150, help="New after it in each prompt.")
@click.option(
    "--hot-share",
    type=click.FloatRange(0, 1),
    help="Share of requests that begin with the first prefix.  [default: as many as with others]",
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Replay this file of Mooncake's format (JSONL)."
)
@click.option("--time-scale", type=_positive, default=1.0, help="Seconds for one of the trace: 0.25 is fast.")
@click.option(
    "--trace-tick-s",
    type=click.FloatRange(0),
    default=3.0,
    help="What the trace's times were rounded to; arrivals are spread inside.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1),
    help="Most tokens of an answer.  [default: 64, or as --trace says]",
)
@click.option(
    "--ignore-eos/--stop-at-eos", default=True, help="Answers of exactly --output-tokens, or as they come."
)
@click.option("--model", help="Model to ask for; default: the first of /v1/models.")
@click.option("--key", envvar="HEADRACE_API_KEY", show_envvar=True, show_default=False, help="API key.")
@click.option("--key-file", type=click.Path(path_type=Path), help="File with the API key; goes before --key.")
@click.option(
    "--completions/--chat", "completions", default=True, help="Token-id prompts, or one user message."
)
@click.option("--stream/--no-stream", default=True, help="Without streaming only E2E latency is known.")
@click.option(
    "--vocab-size", type=click.IntRange(101), default=256, help="Token ids of prompts are below it."
)
@click.option(
    "--seed", type=int, default=0, help="Prompts and arrivals follow from it; repeated, it meets the cache."
)
@click.option("--timeout", type=_positive, default=600.0, help="Seconds for one answer.")
@click.option("--slo", help="What goodput counts, as ttft_ms=1000,tpot_ms=100 (or e2e_ms=…).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
@click.pass_context
def load(context: click.Context, /, as_json: bool, **_: Any) -> None:
    """Measure the server at URL (http://host:port).

    A closed loop of --concurrency users, or an open one with --rate or
    --trace. Exit status: 0 all answered in full, 1 any was not, 2 could not
    run. Ctrl-C prints what there is; what it cut off is not held against the
    server.

    \b
    Examples:
      headrace load http://127.0.0.1:8000 --key-file .headrace/demo.key
      headrace load … --rate 20 --duration 60 --workload shared-prefix
      headrace load … --trace conversation.jsonl --time-scale 0.25
    """
    from kernels.commands.console import table_console
    from loadtest.client import NothingToLoad
    from loadtest.load_options import check
    from loadtest.load_run import run
    from loadtest.report import print_summary
    from loadtest.summary import summarize

    options = check(context)
    try:
        done = asyncio.run(run(options))
    except NothingToLoad as error:
        click.echo(f"headrace load: {error}", err=True)
        sys.exit(2)
    summary = summarize(done, options.slo, options.traffic.workload.ideal_hit_rate(done.num_sent))
    print_summary(summary, table_console())
    if as_json:
        click.echo(json.dumps(summary))
    sys.exit(1 if summary["errors"] or summary["rejected"] else 0)
