"""`headrace serve`: reads the settings, then supervises the launcher that starts the cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from pydantic import ValidationError

from cluster.settings import ENV_PREFIX, TEST_FIELDS, ServeSettings, merged_settings
from cluster.supervisor import supervise

if TYPE_CHECKING:
    from cluster.yaml_file import YamlFile

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


@click.command(
    epilog="Every option is also read from HEADRACE_<NAME>, for example HEADRACE_PORT. The command line goes "
    "before the environment, that before the file of --config, and that before the defaults."
)
@click.option(
    "--config",
    envvar=f"{ENV_PREFIX}CONFIG",
    type=click.Path(path_type=Path),
    help="YAML of these settings, as max_model_len: 4096; paths are relative to its folder",
)
@settings_options
def serve(config: Path | None, **flags: str | None) -> None:
    """Start a cluster, on this machine or on a running Ray, and serve until Ctrl-C.

    \b
    Examples:
      headrace serve
      headrace serve --model tape: --replicas 2 --gateways 2
      headrace serve --model model.gguf --dtype float32 --kv-memory 2G
      headrace serve --config deploy/serve.yaml --port 8080
    """
    given = {name: value for name, value in flags.items() if value is not None}
    file = _file(config)
    said = {} if file is None else file.value
    try:
        settings = merged_settings(given, said)
    except ValidationError as error:
        for line in explain(error, given, file):
            click.echo(f"headrace serve: {line}", err=True)
        sys.exit(2)
    command = [sys.executable, "-m", "cluster.launch"]
    sys.exit(supervise(command, os.environ | {SETTINGS_VARIABLE: settings.model_dump_json()}))


def _file(config: Path | None) -> YamlFile | None:
    from cluster.settings_file import read_settings_file
    from cluster.yaml_file import YamlFileError

    try:
        return None if config is None else read_settings_file(config)
    except YamlFileError as error:
        click.echo(f"headrace serve: --config: {error}", err=True)
        sys.exit(2)


def explain(error: ValidationError, flags: Container[str], file: YamlFile | None = None) -> list[str]:
    """One line a fault, naming where the value came from: flag, variable, or field and line of the file."""
    lines = []
    for fault in error.errors():
        said = fault["msg"].removeprefix("Value error, ")
        if fault["loc"]:
            said = _blamed(str(fault["loc"][0]), f"{said} (given: {fault['input']!r})", flags, file)
        lines.append(said)
    return lines


def _blamed(field: str, said: str, flags: Container[str], file: YamlFile | None) -> str:
    flag, variable = f"--{field.replace('_', '-')}", f"{ENV_PREFIX}{field.upper()}"
    if field in flags:
        return f"{flag}: {said}"
    if file is not None and field in file.value and variable not in map(str.upper, os.environ):
        return str(file.fault(f"{said} ({flag})", field))
    return f"{variable}: {said}"
