"""`headrace rollout`: asks a running cluster for a rolling update and shows it step by step."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.admin_cli.failures import CannotRun, RefusedByServer
from cluster.admin_cli.session import INTERRUPTED, connected, json_option, key_file_option, url_option
from cluster.key_file import read_key

if TYPE_CHECKING:
    from rich.console import Console

    from cluster.admin_cli.client import AdminClient

_POLL_S = 0.5
_PATIENCE_S = 30.0
"""A gateway that was asked may end; another one answers within this time."""


@click.command()
@click.option("--model", help="New model, as for headrace serve; a path on the launcher's machine.")
@click.option("--revision", help="How the digest of the files there begins; alone: they were replaced.")
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    help='JSONL that each new replica must pass: {"prompt": …, "text": …} or token_ids.',
)
@url_option
@key_file_option
@json_option
@click.option("--wait/--no-wait", "waits", default=True, show_default=True, help="Until it is over.")
def rollout(
    model: str | None,
    revision: str | None,
    golden: Path | None,
    url: str,
    key_file: Path,
    as_json: bool,
    waits: bool,
) -> None:
    """Replace all replicas by a new version, one by one, while requests go on.

    Each new replica has to load and to answer golden prompts before the next one
    starts. If one fails, the old version is restored. Exit status: 0 the new
    version serves, 1 it failed and the old one serves, 2 it could not begin.

    \b
    Examples:
      headrace rollout --model /models/v2.gguf --golden golden.jsonl
      headrace rollout --revision 4f1c09
    """
    if not model and not revision:
        raise click.UsageError("give --model, --revision or both")
    body = {"model": _absolute(model), "revision": revision, "golden": _golden(golden)}
    given = {name: value for name, value in body.items() if value}
    try:
        with connected(url, read_key(key_file), as_json) as session:
            shown = _run(session.client, given, waits)
    except (RefusedByServer, CannotRun) as error:
        click.echo(f"headrace rollout: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        click.echo("headrace rollout: not waited for any more; the rollout goes on", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        click.echo(json.dumps(shown))
    if shown["state"] == "failed":
        sys.exit(1 if shown["num_replicas"] else 2)  # 0: it was refused before anything was started


def _absolute(model: str | None) -> str | None:
    """A path that is here is named so that the launcher finds it, wherever that was started."""
    return str(Path(model).resolve()) if model and Path(model).exists() else model


def _golden(path: Path | None) -> list[dict[str, Any]]:
    from cluster.golden import read_golden

    if path is None:
        return []
    try:
        return [prompt.model_dump(exclude_none=True) for prompt in read_golden(path)]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--golden") from None


def _run(client: AdminClient, body: dict[str, Any], waits: bool) -> dict[str, Any]:
    """The rollout as it was last seen. Raises `RefusedByServer` or `CannotRun`."""
    from rich.console import Console

    from cluster.output import waiting_for

    console = Console(stderr=True, highlight=False)
    shown = client.create("/rollouts", body)
    console.print(f"rollout {shown['rollout_id']}")
    if waits:
        with waiting_for(console, "rolling out"):
            shown = _follow(client, console, shown)
    _conclude(console, shown)
    return shown


def _follow(client: AdminClient, console: Console, shown: dict[str, Any]) -> dict[str, Any]:
    num_told, last_heard = 0, time.monotonic()
    while True:
        for step in shown["steps"][num_told:]:
            clock = time.strftime("%H:%M:%S", time.localtime(step["at"]))
            console.print(f"  {clock}  {step['text']}", markup=False, soft_wrap=True)
        num_told = len(shown["steps"])
        if shown["state"] in ("done", "failed"):
            return shown
        time.sleep(_POLL_S)
        try:
            shown, last_heard = client.get(f"/rollouts/{shown['rollout_id']}"), time.monotonic()
        except CannotRun:
            if time.monotonic() - last_heard > _PATIENCE_S:
                raise CannotRun("the cluster does not answer any more; the rollout may go on") from None


def _conclude(console: Console, shown: dict[str, Any]) -> None:
    if shown["state"] == "done":
        console.print(f"done: {shown['num_updated']} replica(s) of the new version serve")
    elif shown["state"] == "failed":
        console.print(f"failed: {shown['error']}", markup=False, soft_wrap=True)
        if shown["remedy"]:
            console.print(f"  remedy: {shown['remedy']}", markup=False, soft_wrap=True)
