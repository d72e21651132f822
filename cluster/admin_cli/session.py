"""What the commands for operators have in common: who is asked, as whom, how it is shown, how it ends."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cluster.admin_cli.failures import CannotRun, RefusedByServer
from cluster.key_file import read_key

if TYPE_CHECKING:
    from cluster.admin_cli.client import AdminClient

INTERRUPTED = 130

url_option = click.option(
    "--url", envvar="HEADRACE_URL", show_envvar=True, default="http://127.0.0.1:8000", show_default=True,
    help="The cluster.",
)  # fmt: skip
key_file_option = click.option(
    "--key-file", envvar="HEADRACE_KEY_FILE", show_envvar=True, type=click.Path(path_type=Path),
    default=Path(".headrace/admin.key"), show_default=True, help="File with a key of scope admin.",
)  # fmt: skip
json_option = click.option(
    "--json", "as_json", is_flag=True, help="The API's own objects, as the last line of stdout."
)


@dataclass(frozen=True)
class Session:
    """One command's conversation with a cluster."""

    client: AdminClient
    key: str = field(repr=False)
    as_json: bool

    def show(self, told: dict[str, Any], as_text: Callable[[], None]) -> None:
        """`told` as a line of JSON if that was asked for, else whatever `as_text` prints."""
        if self.as_json:
            click.echo(json.dumps(told))
        else:
            as_text()

    def deleted(self, kind: str, name: str) -> None:
        told = {"object": "deleted", "kind": kind, "id": name}
        self.show(told, lambda: click.echo(f"{kind} {name} is deleted"))


def asks_the_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command its `Session` and the common options; turns failures into exit statuses.

    0: done. 1: the server refused it. 2: it could not be asked.
    """

    @functools.wraps(command)
    def run(*, url: str, key_file: Path, as_json: bool, **given: Any) -> None:
        if click.get_current_context().invoked_subcommand:
            return _refuse_options(click.get_current_context())  # the sub-command does the work
        with failures_told(), connected(url, read_key(key_file), as_json) as session:
            command(session, **given)

    return url_option(key_file_option(json_option(run)))


def _refuse_options(group: click.Context) -> None:
    """Raises click's usage error for options before a sub-command: it would not hear of them."""
    for param in group.command.params:
        if group.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            below = group.invoked_subcommand
            raise click.UsageError(
                f"{param.opts[0]} before {below} says nothing to it: options of {below} go behind it "
                f"(headrace {group.info_name} {below} --help)"
            )


@contextmanager
def connected(url: str, key: str, as_json: bool) -> Iterator[Session]:
    from cluster.admin_cli.client import AdminClient

    transport = click.get_current_context().obj  # tests put one there
    with AdminClient(url, key, transport) as client:
        yield Session(client, key, as_json)


@contextmanager
def failures_told() -> Iterator[None]:
    try:
        yield
    except RefusedByServer as error:
        _end(str(error), 1)
    except CannotRun as error:
        _end(str(error), 2)
    except KeyboardInterrupt:
        _end("stopped", INTERRUPTED)


def _end(line: str, status: int) -> None:
    name = click.get_current_context().command_path.partition(" ")[2]
    click.echo(f"headrace {name}: {line}", err=True)
    sys.exit(status)


class Id(click.ParamType[str]):
    """An id as a part of a path: nothing that leads elsewhere."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text or not all(c.isascii() and (c.isalnum() or c in "_-") for c in text):
            self.fail("an id has only letters, digits, _ and -", param, ctx)
        return text


ID = Id()
