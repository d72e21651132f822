"""`headrace scenario`: a load on a fleet in virtual time, and whether it kept its bounds."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadtest.scenarios.catalogue import NAMES, find

if TYPE_CHECKING:
    from loadtest.scenarios.scenario import Scenario, ScenarioResult

LIST = "list"


@click.command(context_settings={"show_default": True})
@click.argument("name", type=click.Choice([*NAMES, LIST]))
@click.option("--baseline", "with_baseline", is_flag=True, help="Also the same load without what is shown.")
@click.option(
    "--plot",
    "file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="A picture of it; needs matplotlib: pip install -e '.[plot]' in the checkout.",
)
@click.option("--seed", type=int, default=0, help="Of prompts, arrivals and choices.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def scenario(name: str, with_baseline: bool, file: Path | None, seed: int, as_json: bool) -> None:
    """Run one scenario; `list` names them all.

    Gateways, queues, schedulers and scaling are those that serve; the model, the network and the time are
    virtual. Exit status: 0 if all stated bounds held, 1 if not, 2 if it could not run.

    Example: headrace scenario launch-day --baseline --plot launch-day.png
    """
    if name == LIST:
        for one in NAMES:
            click.echo(f"{one:20}{find(one).summary}")
        return
    if file is not None:
        _check_plot(file)
    chosen = find(name)
    outcomes = {"headrace": _run(chosen, "headrace", seed)}
    if with_baseline:
        outcomes["baseline"] = _run(chosen, "baseline", seed)
    missed = chosen.missed(outcomes["headrace"])
    _print_table(chosen, outcomes, missed)
    if as_json:
        click.echo(json.dumps(_as_json(outcomes, missed)))
    if file is not None:
        _plot(file, name, chosen, outcomes)
    sys.exit(1 if missed else 0)


def _run(chosen: Scenario, which: str, seed: int) -> ScenarioResult:
    from loadtest.progress import ProgressLine

    progress = ProgressLine()
    run = chosen.run if which == "headrace" else chosen.baseline
    return run(seed, lambda now: progress.tell(f"{which}: {now:.0f} s of its own time"))


def _check_plot(file: Path) -> None:
    """Before a run that takes its time."""
    if importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install -e '.[plot]' in the checkout")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"--plot: {file.absolute().parent} is no folder")


def _plot(file: Path, name: str, chosen: Scenario, outcomes: Mapping[str, ScenarioResult]) -> None:
    from loadtest.scenarios.plot import plot

    try:
        plot(file, name, chosen, outcomes)
    except (ImportError, OSError, ValueError) as error:
        click.echo(f"headrace scenario: --plot: {error}", err=True)
        sys.exit(2)


def _print_table(chosen: Scenario, outcomes: Mapping[str, ScenarioResult], missed: list[str]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from kernels.commands.console import table_console

    bounds = {bound.figure: f"{bound.sense} {bound.limit:g}" for bound in chosen.bounds}
    table = Table(box=SIMPLE, padding=(0, 1), title=chosen.summary, title_justify="left")
    for head in ("", *outcomes, "bound"):
        table.add_column(head)
    for figure in outcomes["headrace"].figures:
        values = [_shown(outcome.figures[figure]) for outcome in outcomes.values()]
        table.add_row(figure.replace("_", " "), *values, bounds.get(figure, ""))
    table.add_row("rejected", *(str(sum(outcome.rejected.values())) for outcome in outcomes.values()), "")
    table_console().print(table)
    for failure in missed:
        click.echo(f"missed: {failure}")


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _as_json(outcomes: Mapping[str, ScenarioResult], missed: list[str]) -> dict[str, Any]:
    baseline = outcomes.get("baseline")
    return {
        "held": not missed,
        "missed": missed,
        "figures": outcomes["headrace"].figures,
        "rejected": outcomes["headrace"].rejected,
        "baseline": {} if baseline is None else {**baseline.figures, "rejected": baseline.rejected},
    }
