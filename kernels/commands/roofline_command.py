"""`headrace kernels roofline`: how fast each op can be at best on a GPU, by formula."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kernels.gpus import GPUS

if TYPE_CHECKING:
    from kernels.roofline_rows import Row

_HEADS = ("op", "configuration", "bytes", "again", "products", "other work", "at least", "bound by")


@click.command(context_settings={"show_default": True})
@click.option("--gpu", "name", type=click.Choice(list(GPUS)), default="h100", help="By its data sheet.")
@click.option("--op", "ops", multiple=True, help="Repeatable.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def roofline(name: str, ops: Sequence[str], as_json: bool) -> None:
    """Bytes, operations and the least time of each op, by formula. Nothing is run.

    With attention_flash it also tells what attention would move if its matrix of scores were written out.

    Example: headrace kernels roofline --gpu h100 --op attention_decode
    """
    from kernels.audit.configurations import OPS
    from kernels.roofline_rows import comparison, rows

    if unknown := [op for op in ops if op not in OPS]:
        raise click.UsageError(f"--op: no op {unknown[0]}: {', '.join(OPS)}")
    gpu = GPUS[name]
    found = list(rows(ops, gpu))
    _print(found)
    told = [row.as_json() for row in found]
    if not ops or "attention_flash" in ops:
        compared = comparison(gpu)
        click.echo(compared.told)
        told.append(compared.as_json())
    if as_json:
        click.echo(json.dumps({"rows": told, "failures": []}))


def _print(found: Sequence[Row]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.commands.console import table_console

    table = Table(box=SIMPLE, padding=(0, 1))
    for head in _HEADS:
        table.add_column(head, justify="left" if head in ("op", "configuration", "bound by") else "right")
    for row in found:
        table.add_row(row.op, row.configuration, *_cells(row))
    table_console().print(table)


def _cells(row: Row) -> tuple[str, ...]:
    work = row.work
    counts = (work.num_bytes, work.again_bytes, work.product_flops, work.other_flops)
    cells = tuple(f"{count / 1e6:,.1f} M" if count else "" for count in counts)
    if row.limit is None:
        return (*cells, "", f"n/a: no tensor cores for {work.dtype}")
    return (*cells, f"{row.limit.seconds * 1e6:,.1f} us", row.limit.bound_by)
