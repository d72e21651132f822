"""`headrace bench paging|batching|chunking`: what this layer is built on, in virtual time."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

_SHARE_KEYS = ("waste", "slot_utilisation")

_seed = click.option("--seed", type=int, default=0, help="Lengths and arrivals follow from it.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
_settings = {"show_default": True}


@click.command(context_settings=_settings)
@click.option("--contexts", type=click.IntRange(1, 128), default=20, help="Whole contexts that memory holds.")
@click.option("--requests", type=click.IntRange(50, 10_000), default=400, help="Of real lengths.")
@_seed
@_json
def paging(contexts: int, requests: int, seed: int, as_json: bool) -> None:
    """Paged against naive allocation: users at once, and waste.

    The production scheduler in virtual time. Exit status: 0 if paged waste is below 4 % and more users
    fit, else 1.

    Example: headrace bench paging --contexts 20
    """
    from loadtest.studies.paging import PagingStudy

    if requests < 10 * contexts:
        raise click.BadParameter("must be at least ten times --contexts", param_hint="--requests")
    figures = PagingStudy(num_contexts=contexts, num_requests=requests, seed=seed).run()
    _tell(figures, "memory of {pool_tokens} tokens, context {context}; users at once × {users_gain}", as_json)


@click.command(context_settings=_settings)
@click.option("--slots", type=click.IntRange(2, 1024), default=32, help="Requests that run at once.")
@click.option("--requests", type=click.IntRange(50, 10_000), default=400, help="Of real lengths.")
@_seed
@_json
def batching(slots: int, requests: int, seed: int, as_json: bool) -> None:
    """Continuous against static batching: slots at work, throughput.

    The production scheduler in virtual time. Exit status: 0 if continuous keeps 90 % of slots at work
    and is faster, else 1.

    Example: headrace bench batching --slots 32
    """
    from loadtest.studies.batching import BatchingStudy

    if requests < 2 * slots:
        raise click.BadParameter("must be at least twice --slots", param_hint="--requests")
    figures = BatchingStudy(num_slots=slots, num_requests=requests, seed=seed).run()
    _tell(figures, "{slots} slots; throughput × {throughput_gain}", as_json)


@click.command(context_settings=_settings)
@click.option("--long-prompt", type=click.IntRange(8192, 1_000_000), default=32_768, help="Tokens.")
@click.option("--requests", type=click.IntRange(10, 10_000), default=300, help="Short ones beside it.")
@_seed
@_json
def chunking(long_prompt: int, requests: int, seed: int, as_json: bool) -> None:
    """Chunked against whole prefill: a short request beside long prompts.

    The production scheduler in virtual time. Exit status: 0 if chunked a first token takes at most 3
    steps (p99) and less time, else 1.

    Example: headrace bench chunking --long-prompt 32768
    """
    from loadtest.studies.chunking import ChunkingStudy

    figures = ChunkingStudy(long_tokens=long_prompt, num_short=requests, seed=seed).run()
    title = (
        "short prompts of {short_prompt_tokens} tokens beside long ones of {long_prompt_tokens}; times in ms"
    )
    _tell(figures, title, as_json)


def _tell(figures: dict[str, Any], title: str, as_json: bool) -> None:
    """The table, stood on its side to be narrow; then the JSON; exit status 1 if a bound was missed."""
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.commands.console import table_console

    table = Table(box=SIMPLE, padding=(0, 1), title=title.format(**figures), title_justify="left")
    names, *rows = zip(*(row.items() for row in figures["rows"]), strict=True)
    table.add_column("")
    for _, name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row[0][0].replace("_", " "), *(_shown(key, value) for key, value in row))
    table_console().print(table)
    if as_json:
        click.echo(json.dumps(figures))
    sys.exit(0 if figures["held"] else 1)


def _shown(key: str, value: float) -> str:
    if key in _SHARE_KEYS:
        return f"{value:.1%}"
    return f"{value}" if isinstance(value, int) else f"{value:.1f}"
