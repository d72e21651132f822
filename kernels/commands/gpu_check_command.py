"""`headrace kernels gpu-check`: all that only a GPU can tell, in one go."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernels.commands.output_file import OutputFile
from kernels.commands.parity_command import TINY_MODEL

if TYPE_CHECKING:
    from kernels.gpu_check.row import Row
    from kernels.gpu_check.session import GpuParts, Greedy

DRY_PROMPTS = ((5, 6, 7), (8,))
DRY_OUTPUT_TOKENS = 2


@click.command(context_settings={"show_default": True})
@click.option("--dry-run", is_flag=True, help="Tiny shapes, interpreted: runs every line, claims nothing.")
@click.option(
    "--max-seconds", type=click.FloatRange(min=0), default=450.0, help="What is not begun by then is missed."
)
@click.option("--out", type=OutputFile(), help="Write the JSON object to this file, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def gpu_check(dry_run: bool, max_seconds: float, out: Path | None, as_json: bool) -> None:
    """Check the kernels on the GPU of this machine: speed, CUDA graphs, the engine's tokens, parity.

    Speeds are held to what the same GPU reaches in copies and matmuls, and to torch's own operations. Exit
    status: 0 if everything holds or there is no GPU, 1 if not, or if the time did not suffice, 2 if the file
    of --out cannot be written.

    Example: headrace kernels gpu-check --out gpu.json
    """
    import torch

    from kernels.gpu_check.report import NOTHING_CHECKED

    if not dry_run and not torch.cuda.is_available():
        click.echo(f"no GPU: nothing was checked (torch {torch.__version__} sees none)")
        _hand_over(NOTHING_CHECKED, out, as_json)
        return
    rows, about = _run(dry_run, max_seconds)
    _print(rows)
    from kernels.gpu_check.report import as_json as shown
    from kernels.gpu_check.report import failures

    missed = failures(rows)
    for failure in missed:
        click.echo(f"missed: {failure}")
    if dry_run:
        click.echo("dry run: nothing was checked")
    _hand_over(shown(rows, is_dry=dry_run, about=about), out, as_json)
    sys.exit(1 if missed else 0)


def _run(is_dry: bool, max_seconds: float) -> tuple[list[Row], dict[str, str]]:
    os.environ["TRITON_INTERPRET"] = "1" if is_dry else "0"  # before anything imports Triton
    from kernels.gpu_check.row import that_it_ran
    from kernels.gpu_check.session import checked

    greedy = _greedy(click.get_current_context().meta.get("greedy_record"), is_dry)
    parts, about = _dry_parts(greedy) if is_dry else _gpu_parts(greedy)
    rows = []
    for row in checked(parts.all(), time.monotonic, time.monotonic() + max_seconds):
        click.echo(f"{row.part} {row.name}", err=True)
        rows.append(that_it_ran(row) if is_dry else row)
    return rows, about


def _gpu_parts(greedy: Greedy | None) -> tuple[GpuParts, dict[str, str]]:
    import torch

    from kernels.cuda_graph import cuda_capture
    from kernels.gpu_check.session import ON_GPU, GpuParts
    from kernels.tune import measurement

    flushed = torch.empty(measurement.FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    timer = partial(measurement.median_seconds, flushed=flushed)
    arch = measurement.arch_in_use()
    assert arch is not None
    about = {"gpu": measurement.gpu_in_use(), "arch": arch, **measurement.versions()}
    return GpuParts("cuda", arch, timer, cuda_capture(torch.device("cuda")), greedy, ON_GPU), about


def _dry_parts(greedy: Greedy | None) -> tuple[GpuParts, dict[str, str]]:
    from kernels.gpu_check.session import DRY, GpuParts

    def once(call: Any) -> float:
        call()
        return 1.0

    return GpuParts("cpu", "sm_80", once, lambda work: work, greedy, DRY), {"gpu": "none: a dry run"}


def _greedy(record: Any, is_dry: bool) -> Greedy | None:
    """The engine runs the model, which this room may not import: it comes down with the command line."""
    if record is None or not TINY_MODEL.is_dir():
        return None
    if is_dry:
        return lambda backend: record(str(TINY_MODEL), DRY_PROMPTS, backend, DRY_OUTPUT_TOKENS)
    return lambda backend: record(str(TINY_MODEL), None, backend)


def _hand_over(answer: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """To stdout first: a full disk costs the file, not what took minutes to find."""
    text = json.dumps(answer)
    if as_json:
        click.echo(text)
    if out is None:
        return
    try:
        out.write_text(text + "\n")
    except OSError as error:
        click.echo(f"headrace kernels gpu-check: {out} cannot be written ({error.strerror})", err=True)
        sys.exit(2)


def _print(rows: Sequence[Row]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.commands.console import table_console
    from kernels.gpu_check.report import HEADS, line

    table = Table(box=SIMPLE, padding=(0, 1))
    for head in HEADS:
        table.add_column(head)
    for row in rows:
        table.add_row(*line(row))
    table_console(150).print(table)
