"""`headrace bench …`: measures one part at a time, in this process."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from loadtest.bench_engine import EngineBench

_MAX_CONCURRENCY = 1024


@click.group()
def bench() -> None:
    """Measure one part alone.

    Example: headrace bench engine --prompt-tokens 128 --output-tokens 64 --concurrency 8
    """


@bench.command(context_settings={"show_default": True})
@click.option("--model", default="smollm2", help="GGUF file, Hugging Face folder, short name or tape:.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, help="Of each request.")
@click.option("--output-tokens", type=click.IntRange(1), default=64, help="Of each request, exactly.")
@click.option(
    "--concurrency", type=click.IntRange(1, _MAX_CONCURRENCY), multiple=True, default=(8,), help="Repeatable."
)
@click.option("--requests", type=click.IntRange(1), help="For each concurrency.  [default: twice it]")
@click.option("--shared-prefix-tokens", type=click.IntRange(0), default=0, help="Same for all prompts.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--kv-memory", default="1G", help="Bytes, or 512M, 1G.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=256, help="Budget of a step.")
@click.option("--seed", type=int, default=0, help="Prompts follow from it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def engine(as_json: bool, **given: Any) -> None:
    """The engine alone: no Ray, no HTTP.

    Exit status: 0 measured, 2 could not run.

    Example: headrace bench engine --concurrency 1 --concurrency 8 --json
    """
    from rich.console import Console

    from loadtest.bench_engine import EngineFailed
    from loadtest.bench_setup import CannotBench, build_bench

    if given["shared_prefix_tokens"] >= given["prompt_tokens"]:
        raise click.BadParameter("must be below --prompt-tokens", param_hint="--shared-prefix-tokens")
    try:
        rows = [
            _run(build_bench(given, concurrency), given, concurrency) for concurrency in given["concurrency"]
        ]
    except (CannotBench, EngineFailed) as error:
        click.echo(f"headrace bench engine: {error}", err=True)
        sys.exit(2)
    _print_table(rows, Console())
    if as_json:
        click.echo(json.dumps({**rows[-1], "rows": rows}))


def _run(bench: EngineBench, given: dict[str, Any], concurrency: int) -> dict[str, Any]:
    """One run, with a progress line on stderr."""
    from loadtest.bench_engine import BenchLoad

    load = BenchLoad(
        num_requests=given["requests"] or 2 * concurrency,
        concurrency=concurrency,
        prompt_tokens=given["prompt_tokens"],
        output_tokens=given["output_tokens"],
        shared_prefix_tokens=given["shared_prefix_tokens"],
        seed=given["seed"],
    )
    shown = time.monotonic()

    def progress(done: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > 1:
            shown = time.monotonic()
            click.echo(f"{concurrency} at once: {done} of {load.num_requests} done", err=True)

    return bench.run(load, progress)


def _print_table(rows: list[dict[str, Any]], console: Console) -> None:
    """Narrow enough for 80 columns: a figure that is cut short is worse than none."""
    from rich.box import SIMPLE
    from rich.table import Table

    columns = {
        "concurrency": "at once",
        "output_tokens_per_s": "tok/s",
        "ttft_p50_ms": "TTFT p50",
        "ttft_p99_ms": "p99",
        "itl_p50_ms": "ITL p50",
        "itl_p99_ms": "p99",
        "kv_waste": "waste",
        "hit_rate": "hits",
        "overhead_share": "overhead",
        "peak_rss_mib": "MiB",
    }
    table = Table(box=SIMPLE, padding=0, title="output tokens/s; times in ms", title_justify="left")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(_shown(key, row[key]) for key in columns))
    console.print(table)


def _shown(key: str, value: float | int | None) -> str:
    if value is None:
        return "-"
    if key in ("kv_waste", "hit_rate", "overhead_share"):
        return f"{value:.1%}"
    return f"{value:.1f}" if isinstance(value, float) else f"{value}"
