"""`headrace kernels tune`: searches tiles, warps, stages and splits."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from kernels.audit.configurations import MODELS
from kernels.audit.occupancy import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernels.tune.problem import Problem
    from kernels.tune.search import Costs
    from kernels.tune.session import Outcome

OPS = ("attention_decode", "attention_prefill", "attention_flash", "matmul_quant", "matmul_w8a8")
GPU_OF = {"sm_80": "a100", "sm_89": "l4", "sm_90": "h100", "sm_100": "b200"}
"""Whose data sheet ranks candidates for an architecture."""


@click.command(context_settings={"show_default": True})
@click.option("--op", "ops", type=click.Choice(OPS), multiple=True, help="Repeatable.  [default: all]")
@click.option(
    "--model",
    "models",
    type=click.Choice(list(MODELS)),
    multiple=True,
    help="Its heads and matrices.  [default: all]",
)
@click.option(
    "--arch",
    type=click.Choice(list(LIMITS)),
    help="For this GPU.  [default: the one of this machine, or sm_90]",
)
@click.option(
    "--generations", type=click.IntRange(0), default=4, help="After the first candidates; 0: these alone."
)
@click.option("--population", type=click.IntRange(2), default=12, help="Candidates of a generation.")
@click.option("--seed", type=int, default=0, help="Equal seeds search equally.")
@click.option("--write", is_flag=True, help="Put the results into the table of the architecture.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def tune(
    ops: Sequence[str],
    models: Sequence[str],
    arch: str | None,
    generations: int,
    population: int,
    seed: int,
    write: bool,
    as_json: bool,
) -> None:
    """Search what attention and products with quantised weights are cut into, from what is used today.

    On a machine with a GPU of the architecture candidates are measured. Elsewhere they are compiled and
    ranked by what the compiler made of them: that says which to measure first, not how fast they are.
    Exit status: 0, 1 if a shape has no candidate that can be, 2 if it could not run.

    Example: headrace kernels tune --op attention_decode --model llama --arch sm_90
    """
    if importlib.util.find_spec("triton") is None:
        click.echo("headrace kernels tune: needs triton, which compiles the kernels", err=True)
        sys.exit(2)
    from kernels.tune import measurement
    from kernels.tune.problems import problems
    from kernels.tune.session import tuned

    machine = _machine(arch, measurement.arch_in_use())
    chosen = [problem for op in ops or OPS for problem in problems(op, machine.arch, models)]
    if write:
        _check_table(machine.arch)
    click.echo(f"{len(chosen)} shapes for {machine.gpu}: {machine.basis}", err=True)
    with _costs(machine) as costs_of:
        effort = {"seed": seed, "generations": generations, "population": population}
        found = tuned(chosen, costs_of, basis=machine.basis, **effort)
        outcomes = [_told(outcome) for outcome in found]
    failures = [f"{o.problem.op} {o.problem.name}: no candidate can be" for o in outcomes if o.found is None]
    is_kept = not write or _write(outcomes, machine, seed)
    click.echo(f"{machine.basis} ({machine.gpu})")
    if as_json:
        told = asdict(machine)
        click.echo(json.dumps({"rows": [o.as_json() | told for o in outcomes], "failures": failures}))
    sys.exit(2 if not is_kept else 1 if failures else 0)


@dataclass(frozen=True)
class _Machine:
    arch: str
    gpu: str
    basis: str
    """`MEASURED` on this machine's own GPU, else `RANKED`."""


def _machine(asked: str | None, here: str | None) -> _Machine:
    from kernels.tune.measurement import gpu_in_use
    from kernels.tune.table import MEASURED, RANKED

    arch = asked or here or "sm_90"
    return _Machine(arch, gpu_in_use(), MEASURED) if arch == here else _Machine(arch, GPU_OF[arch], RANKED)


@contextmanager
def _costs(machine: _Machine) -> Iterator[Callable[[Problem], Costs]]:
    from kernels.audit.pool import compiling
    from kernels.gpus import GPUS
    from kernels.tune.measurement import measurement
    from kernels.tune.ranking import ranking
    from kernels.tune.table import MEASURED

    if machine.basis == MEASURED:
        yield lambda problem: measurement(problem, machine.arch)
        return
    with compiling() as pool:
        yield lambda problem: ranking(problem, GPUS[machine.gpu], pool.answers)


def _check_table(arch: str) -> None:
    """Ends the command before the search where its results could not be kept."""
    from kernels.tune.table import TableError, check_writable, load

    try:
        check_writable()
        load(arch)
    except TableError as error:
        click.echo(f"headrace kernels tune: {error}", err=True)
        sys.exit(2)


def _write(outcomes: Sequence[Outcome], machine: _Machine, seed: int) -> bool:
    """Whether it could: what was found is told either way."""
    from kernels.tune.measurement import versions
    from kernels.tune.table import TableError, load, save

    entries = (outcome.entry(machine.basis, machine.gpu, versions(), seed) for outcome in outcomes)
    try:
        table = load(machine.arch).with_entries(entry for entry in entries if entry is not None)
        click.echo(f"written: {save(table)}")
    except TableError as error:
        click.echo(f"headrace kernels tune: {error}", err=True)
        return False
    return True


def _told(outcome: Outcome) -> Outcome:
    """A line as soon as it is known: a whole run takes minutes."""
    problem = outcome.problem
    if outcome.found is None:
        click.echo(f"{problem.op} {problem.name}: none of {outcome.num_measured} candidates can be")
        return outcome
    choice = ", ".join(f"{k} {v}" for k, v in problem.space.named(outcome.found.candidate).items())
    click.echo(
        f"{problem.op} {problem.name}: {choice}; {outcome.found.cost * 1e6:.1f} us,"
        f" at first {outcome.start.cost * 1e6:.1f}; {outcome.num_measured} candidates"
    )
    return outcome
