"""The front door: light to open, and every command explains itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import headrace

REPOSITORY = Path(__file__).resolve().parents[1]

HELP = """
import sys, headrace
headrace.main(sys.argv[1:], standalone_mode=False)
print("\\nimported:", *sys.modules)
"""


def imported_by(program: str, *arguments: str) -> set[str]:
    """Top-level names in `sys.modules` once the program has run; it prints them after `imported:`."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return {name.partition(".")[0] for name in run.stdout.rpartition("imported:")[2].split()}


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command and group below `group`, by what one types."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = {"": headrace.main, **dict(commands(headrace.main))}


def test_the_front_page_imports_nothing_heavy() -> None:
    heavy = {"torch", "ray", "fastapi", "numpy", "pydantic", "redis", "httpx"}
    assert imported_by(HELP, "--help") & (heavy | {"click"}) == {"click"}


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_help_needs_torch_or_ray(name: str) -> None:
    assert imported_by(HELP, *name.split(), "--help") & {"torch", "ray", "fastapi"} == set()


def test_the_gateway_holds_neither_torch_nor_triton() -> None:
    modules = imported_by("import sys, cluster.gateway; print('imported:', *sys.modules)")
    assert modules & {"torch", "triton", "ray"} == {"ray"}


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_says_what_it_does_with_an_example(name: str) -> None:
    shown = CliRunner().invoke(headrace.main, [*name.split(), "--help"])
    assert shown.exit_code == 0
    example = shown.output.partition("Example")[2]
    assert f"headrace {name}".strip() in example


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_option_has_a_help_text_or_choices_that_say_it(name: str) -> None:
    for option in ALL[name].params:
        if isinstance(option, click.Option):
            assert option.help or isinstance(option.type, click.Choice), option.name


def test_the_front_page_lists_every_command_with_its_line() -> None:
    shown = CliRunner().invoke(headrace.main, ["-h"]).output
    width = max(map(len, headrace.COMMANDS))
    for name, entry in headrace.COMMANDS.items():
        assert f"  {name:<{width}}  {entry.summary}\n" in shown


def test_an_unknown_command_is_named_and_exits_2() -> None:
    result = CliRunner().invoke(headrace.main, ["sevre"])
    assert result.exit_code == 2
    assert "No such command 'sevre'" in result.output


def test_the_version_is_the_project_s() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    shown = CliRunner().invoke(headrace.main, ["--version"])
    assert shown.output.split()[-1] == project["version"]


def test_a_command_that_is_interrupted_ends_with_a_status_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def slow() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(headrace.LazyGroup, "get_command", lambda *_: slow)
    assert CliRunner().invoke(headrace.main, ["eval"]).exit_code == headrace.INTERRUPTED
