"""`headrace apply`: the record as a file says, shown before it is done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.admin_cli.failures import CannotRun
from cluster.admin_cli.session import Session, asks_the_cluster

if TYPE_CHECKING:
    from cluster.admin_cli.actions import Action, Plan

_HINT_CHARS = 4


@click.command()
@click.option(
    "-f", "--file", "file", required=True, type=click.Path(path_type=Path), help="What there shall be (YAML)."
)
@click.option("--dry-run", is_flag=True, help="Show the plan, do nothing.")
@click.option("--prune", is_flag=True, help="Delete what a section of the file does not name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--keys-out",
    type=click.Path(path_type=Path),
    help="New file for the keys that are made (JSONL, mode 0600); default: stdout.",
)
@asks_the_cluster
def apply(session: Session, file: Path, dry_run: bool, prune: bool, yes: bool, keys_out: Path | None) -> None:
    """Bring tiers, tenants and keys to what a file says.

    Prints a plan and asks before it acts. A second run has nothing to do. What the file
    does not name stays, unless --prune is given: then it is deleted, but never the caller's
    own tenant or key, a built-in tier, or a tier in use. A section that is left out
    (tiers, tenants, a tenant's keys) is not touched at all. A tier is written whole: what
    is not said has its default, which for limits is none. Keys are known by name; one that
    is missing is made and shown this once; none is ever made again. expires_in counts
    when a key is made; the plan notes a key that is there and expires otherwise. Money
    is in micro-units (1 unit = 1000000). A file has at most 1 MiB.

    Exit status: 0 as the file says, 1 the server refused a step, 2 it could not run.

    \b
    Examples:
      headrace apply -f deploy/tenants.yaml --dry-run
      headrace apply -f tenants.yaml --prune --yes --keys-out new-keys.jsonl
    """
    from cluster.admin_cli.plan_text import plan_json, print_plan

    plan = _plan(session, file, prune)
    if not session.as_json:
        print_plan(plan)
    if dry_run or not plan.actions:
        state = "planned" if plan.actions else "nothing_to_do"
        session.show(plan_json(plan, state, None, with_keys=False), as_text=lambda: None)
        return
    if not yes:
        _ask()
    _act(session, plan, keys_out)


def _plan(session: Session, file: Path, prune: bool) -> Plan:
    from cluster.admin_cli.plan import PlanError, make_plan
    from cluster.admin_cli.record import read_known
    from cluster.admin_cli.wanted_file import read_wanted
    from cluster.yaml_file import YamlFileError

    try:
        wanted = read_wanted(file)
        return make_plan(wanted, read_known(session.client), own_hint=session.key[-_HINT_CHARS:], prune=prune)
    except YamlFileError as error:
        raise CannotRun(f"--file: {error}") from None
    except PlanError as error:
        raise CannotRun(f"{file}: {error}") from None


def is_terminal() -> bool:
    return sys.stdin.isatty()


def _ask() -> None:
    if not is_terminal():
        raise CannotRun("nothing was done: there is no terminal to ask on; give --yes")
    if not click.confirm("Do it?", err=True):
        raise CannotRun("nothing was done")


def _act(session: Session, plan: Plan, keys_out: Path | None) -> None:
    """Raises what ended it too early, once it is told how far it came."""
    from cluster.admin_cli.carry_out import carry_out
    from cluster.admin_cli.new_keys import NewKeys
    from cluster.admin_cli.plan_text import plan_json, print_outcome

    makes_keys = any(action.verb == "create" and action.kind == "key" for action in plan.actions)
    keys = NewKeys(keys_out if makes_keys else None)
    in_result = session.as_json and keys_out is None

    def on_done(action: Action, told: dict[str, Any]) -> None:
        if "key" in told and not in_result:
            keys.write(told)

    outcome = carry_out(session.client, plan.actions, on_done)
    keys.close()
    state = "done" if outcome.failure is None else "failed"
    result = plan_json(plan, state, outcome, with_keys=in_result)
    session.show(result, as_text=lambda: click.echo("Done." if outcome.failure is None else "Not done."))
    if outcome.made:
        click.echo("New keys are shown this once: keep them now.", err=True)
    if outcome.failure is not None:
        print_outcome(plan, outcome)
        raise outcome.failure
