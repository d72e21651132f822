"""`headrace ray-env`: gives a node of a Ray cluster the environment that headrace needs there."""

from __future__ import annotations

import os
import shlex
import sys

import click

from cluster.ray_env import SECRETS, node_environment
from cluster.run_dir import RunDir


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ray_env(command: tuple[str, ...]) -> None:
    """Run COMMAND, which is `ray start`, with the environment that headrace needs; without one, print it.

    RAY_AUTH_TOKEN and HEADRACE_SECRET must be set already, to the same values on every node.

    \b
    Examples:
      headrace ray-env ray start --head
      headrace ray-env ray start --address 10.0.0.1:6379
    """
    if missing := [name for name in SECRETS if not os.environ.get(name)]:
        click.echo(f"headrace ray-env: {' and '.join(missing)} must be set, the same on every node", err=True)
        sys.exit(2)
    try:
        added = node_environment(RunDir.of_node(), os.environ)
    except OSError as error:
        click.echo(f"headrace ray-env: the node's directory cannot be made: {error}", err=True)
        sys.exit(2)
    if not command:
        for name, value in added.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return
    try:
        os.execvpe(command[0], list(command), os.environ | added)
    except OSError as error:
        click.echo(f"headrace ray-env: {command[0]} cannot be run: {error.strerror}", err=True)
        sys.exit(2)
