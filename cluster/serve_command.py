"""`headrace serve`: reads the settings, then supervises the launcher that starts the cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import ValidationError

from cluster.settings import ENV_PREFIX, TEST_FIELDS, ServeSettings
from cluster.supervisor import supervise

SETTINGS_VARIABLE = "HEADRACE_LAUNCH_SETTINGS"
"""How the launcher gets its settings from the supervisor, as JSON."""


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One `--flag` for each field of `ServeSettings`; types and defaults stay with the model."""
    for name, field in reversed(ServeSettings.model_fields.items()):
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            switch = click.option(
                flag, name, is_flag=True, flag_value="true", default=None, help=field.description
            )
            command = switch(command)
            continue
        default = "" if field.default is None else f"  [default: {field.default}]"
        values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        text = f"{field.description}{': ' + ', '.join(values) if values else ''}{default}"
        command = click.option(flag, name, help=text, hidden=name in TEST_FIELDS)(command)
    return command


@click.command(epilog="Every option is also read from HEADRACE_<NAME>, for example HEADRACE_PORT.")
@settings_options
def serve(**flags: str | None) -> None:
    """Start a cluster, on this machine or on a running Ray, and serve until Ctrl-C.

    \b
    Examples:
      headrace serve
      headrace serve --model tape: --replicas 2 --gateways 2
      headrace serve --model model.gguf --dtype float32 --kv-memory 2G
    """
    flags = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = ServeSettings(**flags)  # type: ignore[arg-type]  # pydantic converts
    except ValidationError as error:
        for line in explain(error, flags):
            click.echo(f"headrace serve: {line}", err=True)
        sys.exit(2)
    command = [sys.executable, "-m", "cluster.launch"]
    sys.exit(supervise(command, os.environ | {SETTINGS_VARIABLE: settings.model_dump_json()}))


def explain(error: ValidationError, flags: Container[str]) -> list[str]:
    """One line a fault, naming the flag, or the variable of a field that is not among the `flags` given."""
    lines = []
    for fault in error.errors():
        said = fault["msg"].removeprefix("Value error, ")
        if fault["loc"]:
            said = f"{_source(str(fault['loc'][0]), flags)}: {said} (given: {fault['input']!r})"
        lines.append(said)
    return lines


def _source(field: str, flags: Container[str]) -> str:
    return f"--{field.replace('_', '-')}" if field in flags else f"{ENV_PREFIX}{field.upper()}"
