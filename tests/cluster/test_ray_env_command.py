"""`headrace ray-env`: prints the variables, or becomes the command with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cluster.ray_env import ON_NODES, PROXY_PATHS, node_environment
from cluster.ray_env_command import ray_env
from cluster.run_dir import RunDir

SECRETS = {"RAY_AUTH_TOKEN": "token of a test", "HEADRACE_SECRET": "secret of a test"}


@pytest.fixture(autouse=True)
def node_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(RunDir, "of_node", lambda: RunDir(tmp_path))
    return RunDir(tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was really run would take the place of the tests, and end well."""

    def refuse(*what: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "execvpe", refuse)


def call(*arguments: str, told: Mapping[str, str] = SECRETS) -> Result:
    return CliRunner().invoke(ray_env, arguments, env={**dict.fromkeys(SECRETS), **told})


def test_a_shell_that_evaluates_it_has_what_a_node_needs(node_dir: RunDir) -> None:
    script = call().output + f"\n{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    run = subprocess.run(
        ["sh", "-ec", script], capture_output=True, text=True, check=True, env={}, timeout=20
    )
    told = json.loads(run.stdout)
    needed = node_environment(node_dir, os.environ)
    assert {name: told[name] for name in needed} == needed


def test_no_secret_is_printed() -> None:
    assert not any(secret in call().output for secret in SECRETS.values())


@pytest.mark.parametrize("name", sorted(SECRETS))
@pytest.mark.parametrize("value", [None, ""])
def test_a_secret_that_is_missing_or_empty_is_named(name: str, value: str | None) -> None:
    told = SECRETS | {name: value} if value is not None else {k: v for k, v in SECRETS.items() if k != name}
    result = call("true", told=told)
    assert result.exit_code == 2
    assert result.output == f"headrace ray-env: {name} must be set, the same on every node\n"


def test_a_command_is_run_in_its_place_with_its_own_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda *what: became.append(what))
    call("ray", "start", "--head", "--help")
    ((program, arguments, told),) = became
    assert (program, arguments) == ("ray", ["ray", "start", "--head", "--help"])
    assert ON_NODES.items() <= told.items()
    assert SECRETS.items() <= told.items()
    assert set(PROXY_PATHS) <= set(told)


def test_a_command_that_is_not_there_is_named() -> None:
    result = call("no-such-command")
    assert result.exit_code == 2
    assert result.output == "headrace ray-env: no-such-command cannot be run: No such file or directory\n"


def test_a_directory_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> RunDir:
        raise PermissionError("/x is not a private directory of this user")

    monkeypatch.setattr(RunDir, "of_node", refuse)
    result = call("true")
    assert result.exit_code == 2
    assert "the node's directory cannot be made: /x is not a private directory" in result.output
