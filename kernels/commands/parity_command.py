"""`headrace kernels parity`: every op beside its reference, or beside what it said before."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from kernels.commands.output_file import OutputFile
from kernels.parity.catalogue import OPS

if TYPE_CHECKING:
    from kernels.parity.runner import Row
    from kernels.parity.session import Session
    from kernels.parity.store import GreedyAnswers, GreedyModel, Prompts

TINY_MODEL = Path(__file__).parents[2] / "tests" / "data" / "tiny"
_HEADS = ("op", "against", "cases", "outputs", "worst error", "near ties", "missed")


@click.command(context_settings={"show_default": True})
@click.option("--op", "ops", type=click.Choice(list(OPS)), multiple=True, help="Repeatable.  [default: all]")
@click.option("--whole", is_flag=True, help="Every shape and type, not the quick grid: minutes.")
@click.option("--save", type=OutputFile(), help="Keep inputs and outputs in this file.")
@click.option(
    "--against",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of --save: its inputs through the present code.",
)
@click.option("--exact", is_flag=True, help="With --against: equal, not within the tolerance of the type.")
@click.option(
    "--greedy-model",
    "model",
    help="Its greedy tokens are kept and compared as well, unless an --op is named."
    "  [default: the tiny model of a checkout's tests]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def parity(
    ops: Sequence[str],
    whole: bool,
    save: Path | None,
    against: Path | None,
    exact: bool,
    model: str | None,
    as_json: bool,
) -> None:
    """Compare each op with its reference, or with stored outputs.

    Runs on the GPU, or where there is none through Triton's interpreter. Exit status: 0 if every output is
    within the tolerance of its type, 1 if not (then --save writes nothing), 2 if it could not run.

    Example: headrace kernels parity --save before.npz; headrace kernels parity --against before.npz
    """
    if save is not None and against is not None:
        raise click.UsageError("--save and --against exclude each other")
    if exact and against is None:
        raise click.UsageError("--exact goes with --against")
    greedy: GreedyModel | None = click.get_current_context().meta.get("greedy_record")
    session = _session(ops, whole, None if ops else greedy, model)
    rows = _run(session, save, against, exact)
    failures = [row.told for row in rows if row.failure is not None]
    _print(rows, failures)
    if as_json:
        from kernels.parity.report import as_json as shown

        click.echo(json.dumps({"rows": [shown(row) for row in rows], "failures": failures}))
    sys.exit(1 if failures else 0)


def _session(ops: Sequence[str], whole: bool, greedy: GreedyModel | None, model: str | None) -> Session:
    """Imports torch and Triton: compiled where there is a GPU, else interpreted, which is decided before."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        from kernels.parity.runner import device_in_use
        from kernels.parity.session import Session
    except ImportError as error:
        _give_up(error)
    return Session(
        ops=ops or list(OPS),
        is_whole=whole,
        device=device_in_use(),
        greedy=None if greedy is None else _of_model(greedy, model),
        tell=partial(click.echo, err=True),
    )


def _of_model(greedy: GreedyModel, model: str | None) -> Callable[[Prompts | None], GreedyAnswers]:
    def ask(prompts: Prompts | None) -> GreedyAnswers:
        if model is None and not TINY_MODEL.is_dir():
            raise ValueError("no model: name one with --greedy-model, or an --op to go without")
        return greedy(model or str(TINY_MODEL), prompts)

    return ask


def _run(session: Session, save: Path | None, against: Path | None, is_exact: bool) -> list[Row]:
    from kernels.parity.archive import ArchiveError
    from kernels.parity.store import ModelFailed

    try:
        rows = session.check() if against is None else session.hold_to(against, is_exact=is_exact)
        if save is not None and all(row.failure is None for row in rows):
            session.save(save)
    except (ArchiveError, ModelFailed) as error:
        _give_up(error)
    return rows


def _give_up(error: Exception) -> NoReturn:
    click.echo(f"headrace kernels parity: {error}", err=True)
    sys.exit(2)


def _print(rows: Sequence[Row], failures: Sequence[str]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.commands.console import table_console
    from kernels.parity.report import changed, lines

    table = Table(box=SIMPLE, padding=(0, 1))
    for head in _HEADS:
        table.add_column(head, justify="left" if head in ("op", "against") else "right")
    for line in lines(rows):
        table.add_row(*line)
    table_console().print(table)
    if others := changed(rows):
        click.echo(f"within tolerance but not the same: {len(others)}, first {others[0].place}")
    for failure in failures:
        click.echo(f"missed: {failure}")
