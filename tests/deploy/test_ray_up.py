"""The Ray cluster on AWS: Ray takes the file, its nodes are told what `serve` asks of them, one port is open.

Ray's own validation runs without AWS; the start commands run for real, with a stand-in for `ray`.
"""

from __future__ import annotations

import ast
import copy
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from cluster.node_check import environment_facts, mismatches, needed_facts
from cluster.redis_check import check_redis
from cluster.redis_server import find_binary
from cluster.settings import ServeSettings

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "deploy" / "ray"
CONFIG: dict[str, Any] = yaml.safe_load((FOLDER / "aws.yaml").read_text())
SCHEMA = json.loads(files("ray.autoscaler").joinpath("ray-schema.json").read_text())
SECRETS = {"RAY_AUTH_TOKEN": "the token", "HEADRACE_SECRET": "the secret", "REDIS_PASSWORD": "the-password"}
NONCE = b"n" * 32
SSH = 22

PROGRAM = f'#!/bin/sh\nexec {sys.executable} {REPOSITORY / "headrace.py"} "$@"\n'
STAND_IN = f"""#!{sys.executable}
import json, os, sys
json.dump([sys.argv[1:], dict(os.environ)], open(os.path.expanduser("~/started.json"), "w"))
"""
"""In the place of `ray`: writes down how it was called."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A node's home directory as the setup commands leave it, with a stand-in for `ray`."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in {"headrace": PROGRAM, "ray": STAND_IN}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    lines = [f"export {name}='{value}'" for name, value in SECRETS.items()]
    (tmp_path / "headrace.env").write_text("\n".join(lines))
    return tmp_path


def run(command: str | Path, home: Path) -> None:
    told = {"HOME": str(home), "PATH": os.environ["PATH"], "RAY_HEAD_IP": "10.0.0.1"}
    subprocess.run(["bash", "-c", str(command)], env=told, check=True, timeout=30)


def started(commands: list[str], home: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment that `ray start` gets from these start commands."""
    (command,) = (command for command in commands if " start" in command)
    run(command, home)
    arguments, told = json.loads((home / "started.json").read_text())
    return arguments, told


def problems(config: dict[str, Any]) -> str:
    """What Ray has against it, by its schema alone and as `ray up` reads it; empty if nothing."""
    try:
        jsonschema.validate(config, SCHEMA)
        validate_config(prepare_config(copy.deepcopy(config)))
    except (jsonschema.ValidationError, ValueError) as error:
        return str(error).splitlines()[0]
    return ""


def test_ray_takes_the_file() -> None:
    assert problems(CONFIG) == ""


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a key that does not exist": (lambda config: config.update(max_worker=1), "max_worker"),
    "a node type without resources": (
        lambda config: config["available_node_types"]["gpu"].pop("resources"),
        "'resources' is a required property",
    ),
    "a resource that is no number": (
        lambda config: config["available_node_types"]["gpu"]["resources"].update(GPU="one"),
        "'one' is not of type 'integer'",
    ),
    "a head that is no node type": (lambda config: config.update(head_node_type="haed"), "head_node_type"),
    "more workers than there may be": (lambda config: config.update(max_workers=1), "max_workers"),
    "a command that is no text": (
        lambda config: config["head_start_ray_commands"].append({"ray": "start"}),
        "is not of type 'string'",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_ray_refuses(name: str) -> None:
    plant, found_by = FAULTS[name]
    config = copy.deepcopy(CONFIG)
    plant(config)
    assert found_by in problems(config)


def test_the_head_has_no_gpu_and_each_worker_one() -> None:
    types = CONFIG["available_node_types"]
    head = types[CONFIG["head_node_type"]]
    workers = [one for name, one in types.items() if name != CONFIG["head_node_type"]]
    assert (head["resources"].get("GPU"), [one["resources"]["GPU"] for one in workers]) == (None, [1])
    assert all(one["resources"]["CPU"] >= 1 for one in types.values())


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_a_node_is_told_all_that_serve_asks_of_it(kind: str, home: Path) -> None:
    _, told = started(CONFIG[f"{kind}_start_ray_commands"], home)
    needed = needed_facts(environment_facts(NONCE, SECRETS))
    assert list(mismatches(kind, environment_facts(NONCE, told), needed)) == []


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_a_start_command_that_forgets_it_is_found(kind: str, home: Path) -> None:
    commands = [
        command.replace("~/venv/bin/headrace ray-env ", "")
        for command in CONFIG[f"{kind}_start_ray_commands"]
    ]
    _, told = started(commands, home)
    needed = needed_facts(environment_facts(NONCE, SECRETS))
    assert len(list(mismatches(kind, environment_facts(NONCE, told), needed))) > 5


def test_a_node_without_the_secrets_does_not_start(home: Path) -> None:
    (home / "headrace.env").write_text("export RAY_AUTH_TOKEN=token")
    with pytest.raises(subprocess.CalledProcessError):
        started(CONFIG["worker_start_ray_commands"], home)
    assert not (home / "started.json").exists()


def test_every_node_installs_the_versions_for_gpus() -> None:
    installs = [command for command in CONFIG["setup_commands"] if "pip install" in command]
    constraints = [re.findall(r"-c ~/headrace/(\S+)", command) for command in installs]
    assert constraints == [["constraints-cuda.txt"]] * 2
    assert (REPOSITORY / "constraints-cuda.txt").exists()


def test_the_workers_go_to_the_head_s_port(home: Path) -> None:
    head, _ = started(CONFIG["head_start_ray_commands"], home)
    worker, _ = started(CONFIG["worker_start_ray_commands"], home)
    port = next(one.partition("=")[2] for one in head if one.startswith("--port="))
    assert {"start", "--head", "--autoscaling-config=~/ray_bootstrap_config.yaml"} <= set(head)
    assert f"--address=10.0.0.1:{port}" in worker


def test_all_nodes_get_the_same_code_and_secrets_and_nothing_secret_is_in_the_file() -> None:
    assert CONFIG["file_mounts"] == {name: name.removeprefix("~/") for name in CONFIG["file_mounts"]}
    ignored = (REPOSITORY / ".gitignore").read_text().split()
    assert {*CONFIG["file_mounts"].values()} <= {*ignored}
    made = re.search(r"for name in ([A-Z_ ]+); do", (FOLDER / "README.md").read_text())
    assert made
    assert made[1].split() == list(SECRETS)


def inbound_rules(permissions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Ray writes into a new security group. Its module needs boto3, these functions of it do not."""
    source = files("ray.autoscaler._private.aws").joinpath("config.py").read_text()
    functions = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and re.fullmatch(r"_create_default_.*inbound_rules", node.name)
    ]
    space: dict[str, Any] = {"itertools": itertools}
    exec(compile(ast.Module(functions, []), "ray", "exec"), space)
    rules: list[dict[str, Any]] = space["_create_default_inbound_rules"](["sg-of-the-nodes"], permissions)
    return rules


def open_ports(config: dict[str, Any]) -> set[tuple[str, int, int]]:
    """(protocol, first, last) that anybody reaches once Ray has made the security group."""
    return {
        (rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
        for rule in inbound_rules(config["provider"]["security_group"]["IpPermissions"])
        if rule.get("IpRanges") or rule.get("Ipv6Ranges") or rule.get("PrefixListIds")
    }


def test_nothing_is_open_but_the_gateway_s_port_and_the_ssh_that_ray_adds() -> None:
    front = ServeSettings().port
    assert open_ports(CONFIG) == {("tcp", front, front), ("tcp", SSH, SSH)}
    types = CONFIG["available_node_types"].values()
    assert not any({"SecurityGroupIds", "NetworkInterfaces"} & set(one["node_config"]) for one in types)


def test_a_dashboard_that_is_opened_too_is_found() -> None:
    config = copy.deepcopy(CONFIG)
    rule = {"IpProtocol": "tcp", "FromPort": 8265, "ToPort": 8265, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    config["provider"]["security_group"]["IpPermissions"].append(rule)
    assert ("tcp", 8265, 8265) in open_ports(config)


def test_the_dashboard_listens_on_the_head_s_loopback(home: Path) -> None:
    arguments, _ = started(CONFIG["head_start_ray_commands"], home)
    assert "--dashboard-host=127.0.0.1" in arguments


class HeadRedis:
    """`deploy/ray/redis`, run in a home directory, on a free port."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.script = home / "redis.sh"
        text = (FOLDER / "redis").read_text()
        assert text.count("port 6380") == 1
        self.script.write_text(text.replace("port 6380", f"port {self.port}").replace("0.0.0.0", "127.0.0.1"))
        self.script.chmod(0o700)
        (home / "redis-server").symlink_to(find_binary())

    def start(self) -> None:
        told = {"HOME": str(self.home), "PATH": f"{self.home}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run([self.script], env=told, check=True, timeout=30)

    def client(self, password: str, tries: int = 0) -> Redis:
        return Redis(port=self.port, password=password, retry=Retry(ConstantBackoff(0.05), tries))


def test_the_head_s_redis_asks_for_the_password_keeps_all_and_starts_once(home: Path) -> None:
    redis = HeadRedis(home)
    redis.start()
    password = SECRETS["REDIS_PASSWORD"]
    with redis.client(password) as client, redis.client("guessed") as stranger:
        try:
            with redis.client(password, tries=200) as patient:
                patient.ping()  # it listens a moment after its parent has ended
            facts = check_redis(f"redis://:{password}@127.0.0.1:{redis.port}")
            assert facts.warnings == ()
            with pytest.raises(AuthenticationError):
                stranger.ping()
            redis.start()  # changes nothing
            assert check_redis(f"redis://:{password}@127.0.0.1:{redis.port}").run_id == facts.run_id
            assert (home / "redis" / "redis.conf").stat().st_mode & 0o777 == 0o600
        finally:
            client.shutdown(nosave=True)


def test_serve_joins_the_nodes_with_their_redis_and_passes_flags_on(home: Path) -> None:
    (home / "venv" / "bin" / "headrace").write_text(STAND_IN)
    run(f"{FOLDER / 'serve'} --replicas 2", home)
    arguments, told = json.loads((home / "started.json").read_text())
    assert arguments[:3] == ["serve", "--ray-address", "auto"]
    assert arguments[-2:] == ["--replicas", "2"]
    assert arguments[arguments.index("--host") + 1] == "0.0.0.0"
    assert re.fullmatch(r"redis://:the-password@[0-9a-f.:]+:6380", told["HEADRACE_REDIS_URL"])
    assert told["HEADRACE_SECRET"] == SECRETS["HEADRACE_SECRET"]
