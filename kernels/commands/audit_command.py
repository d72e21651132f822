"""`headrace kernels audit`: what each kernel compiles to, on a machine that needs no GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kernels.audit.occupancy import LIMITS

if TYPE_CHECKING:
    from kernels.audit.verdict import Row


@click.command(context_settings={"show_default": True})
@click.option("--arch", type=click.Choice(list(LIMITS)), default="sm_90", help="Compile for this GPU.")
@click.option("--op", "ops", multiple=True, help="Repeatable.  [default: all]")
@click.option("--whole", is_flag=True, help="Every configuration, not the quick ones: minutes.")
@click.option("--jobs", type=click.IntRange(1), help="Compiling processes.  [default: one a processor]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def audit(arch: str, ops: Sequence[str], whole: bool, jobs: int | None, as_json: bool) -> None:
    """Compile the kernels and read the result: registers, spills, shared memory, tensor cores, loads.

    Shares and counts are static: of the code, not of a run. Exit status: 0 if all is as expected; 1 for a
    spill, a product without tensor cores, narrow loads of keys, values or weights in a loop, bank conflicts
    above the stated degree, or a kernel that does not compile or fit; 2 if it could not run.

    Example: headrace kernels audit --arch sm_80 --op attention_decode
    """
    from kernels.audit.configurations import OPS, configurations
    from kernels.audit.pool import compiling
    from kernels.audit.session import audited

    if unknown := [op for op in ops if op not in OPS]:
        raise click.UsageError(f"--op: no op {unknown[0]}: {', '.join(OPS)}")
    if importlib.util.find_spec("triton") is None:
        click.echo("headrace kernels audit: needs triton, which compiles the kernels", err=True)
        sys.exit(2)
    chosen = configurations(ops, is_quick=not whole)
    click.echo(f"{len(chosen)} configurations for {arch}", err=True)
    with compiling(jobs) as pool:
        rows = audited(chosen, arch, pool.answers)
    failures = [f"{row.place}: {failure}" for row in rows for failure in row.failures]
    _print(rows, failures)
    if as_json:
        from kernels.audit.report import as_json as shown

        click.echo(json.dumps({"rows": [shown(row) for row in rows], "failures": failures}))
    sys.exit(1 if failures else 0)


def _print(rows: Sequence[Row], failures: Sequence[str]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.audit.report import HEADS, WIDTH, line
    from kernels.commands.console import table_console

    table = Table(box=SIMPLE, padding=(0, 1))
    for head in HEADS:
        table.add_column(head)
    for row in rows:
        table.add_row(*line(row))
    table_console(WIDTH).print(table)
    for failure in failures:
        click.echo(f"missed: {failure}")
