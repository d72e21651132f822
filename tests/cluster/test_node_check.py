"""What a node of a running Ray must be: each difference is one line that names it, found and needed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from cluster import node_check
from cluster.node_check import (
    PRIVATE,
    Facts,
    Question,
    check_reach,
    environment_facts,
    mismatches,
    needed_facts,
    node_facts,
)
from cluster.ray_env import ON_NODES, PROXY_PATHS, SECRETS, node_environment
from cluster.redis_server import RedisServer
from cluster.run_dir import RunDir
from cluster.settings import ServeSettings
from cluster.stages import StartError

NONCE = b"n" * 32
TOLD = {"RAY_AUTH_TOKEN": "the token", "HEADRACE_SECRET": "the secret"}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    home = tmp_path_factory.mktemp("redis")
    server = RedisServer.start(home, home)
    yield server
    server.stop()


@pytest.fixture
def told(tmp_path: Path) -> dict[str, str]:
    """The environment of a node that was started well."""
    return TOLD | node_environment(RunDir(tmp_path), {})


def needed() -> Facts:
    """As a launcher says it, which has the secrets and no proxy of its own."""
    return needed_facts(environment_facts(NONCE, TOLD))


def lines(told: dict[str, str]) -> list[str]:
    return list(mismatches("10.0.0.2", environment_facts(NONCE, told), needed()))


def test_a_node_that_was_started_well_is_as_needed(told: dict[str, str]) -> None:
    assert lines(told) == []


@pytest.mark.parametrize("name", sorted(ON_NODES))
def test_a_variable_that_is_missing_or_other_is_named_with_what_it_must_be(
    told: dict[str, str], name: str
) -> None:
    must = ON_NODES[name]
    assert lines(told | {name: "odd"}) == [f"node 10.0.0.2: {name} is odd, must be {must}"]
    del told[name]
    assert lines(told) == [f"node 10.0.0.2: {name} is not set, must be {must}"]


@pytest.mark.parametrize("name", SECRETS)
def test_another_secret_is_named_and_never_shown(told: dict[str, str], name: str) -> None:
    other = told | {name: "guessed"}
    assert lines(other) == [f"node 10.0.0.2: {name} is another one, must be the launcher's"]
    assert lines(told | {name: ""}) == [f"node 10.0.0.2: {name} is not set, must be the launcher's"]
    assert "guessed" not in repr(environment_facts(NONCE, other))


def test_a_secret_s_digest_is_of_use_in_one_check_only() -> None:
    name = SECRETS[0]
    assert environment_facts(b"a" * 32, TOLD)[name] != environment_facts(b"b" * 32, TOLD)[name]


@pytest.mark.parametrize("name", sorted(PROXY_PATHS))
def test_a_proxy_s_file_where_others_can_write_is_named(
    told: dict[str, str], name: str, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    path = str(shared / "file")
    assert lines(told | {name: path}) == [f"node 10.0.0.2: {name} is {path}, must be {PRIVATE}"]
    assert lines(told | {name: "/nowhere/at/all"})[0].startswith(f"node 10.0.0.2: {name} is /nowhere/at/all,")
    assert lines(told | {name: ""}) == [f"node 10.0.0.2: {name} is not set, must be {PRIVATE}"]


def test_a_proxy_s_directory_of_another_user_is_not_private(
    told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    us = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: us + 1)
    assert len(lines(told)) == len(PROXY_PATHS)


def test_a_node_says_its_versions_its_code_its_model_and_its_redis(redis: RedisServer) -> None:
    facts = node_facts(Question(NONCE, "tape:", redis.url))
    assert facts["Python"] == platform.python_version()
    assert facts["ray"] == version("ray")
    assert version("torch").startswith(facts["torch"])
    assert "+" not in facts["torch"]
    assert facts["--redis-url"].startswith("server ")
    assert facts["--model tape:"].startswith("tape")
    assert len(facts["headrace's code"]) == 12
    assert node_facts(Question(NONCE, "tape:", redis.url)) == facts


def test_a_node_that_reaches_another_redis_or_none_is_named(redis: RedisServer, tmp_path: Path) -> None:
    here = node_facts(Question(NONCE, "tape:", redis.url))
    other = RedisServer.start(tmp_path, tmp_path)
    try:
        there = node_facts(Question(NONCE, "tape:", other.url))
    finally:
        other.stop()
    (line,) = mismatches("10.0.0.2", there, here)
    assert line == f"node 10.0.0.2: --redis-url is {there['--redis-url']}, must be {here['--redis-url']}"
    without = node_facts(Question(NONCE, "tape:", f"unix://{tmp_path}/none.sock"))
    (line,) = mismatches("10.0.0.2", without, here)
    assert line.startswith("node 10.0.0.2: --redis-url is unusable (Redis does not answer")


def test_a_model_that_is_missing_or_other_on_a_node_is_named(tmp_path: Path) -> None:
    name = f"tape:{tmp_path}/tape.jsonl"
    question = Question(NONCE, name, None)
    without = node_facts(question)
    (tmp_path / "tape.jsonl").write_text('{"prompt_hash": "*", "token_ids": [65]}\n')
    here = node_facts(question)
    (line,) = mismatches("10.0.0.2", without, here)
    assert line.startswith(f"node 10.0.0.2: --model {name} is unusable (")


def test_code_that_differs_in_one_byte_or_in_one_file_s_name_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_check, "REPOSITORY", tmp_path)
    file = tmp_path / "cluster" / "a.py"
    file.parent.mkdir()
    digests = set()
    for content in ("one", "two"):
        file.write_text(content)
        digests.add(node_facts(Question(NONCE, "tape:", None))["headrace's code"])
    file.rename(file.with_name("b.py"))
    digests.add(node_facts(Question(NONCE, "tape:", None))["headrace's code"])
    file.with_name("c.pyc").write_text("compiled")
    digests.add(node_facts(Question(NONCE, "tape:", None))["headrace's code"])
    assert len(digests) == 3


def test_a_fact_that_a_node_does_not_know_is_a_difference() -> None:
    """An older version there says fewer facts."""
    assert list(mismatches("n", {}, {"ray": "2.60.0"})) == ["node n: ray is not set, must be 2.60.0"]


GOOD: dict[str, Any] = {"redis_url": "redis://10.0.0.1:6380", "host": "0.0.0.0"}
TWO = ["10.0.0.1", "10.0.0.2"]


def test_what_every_node_reaches_is_fine() -> None:
    check_reach(ServeSettings(**GOOD), TOLD, TWO)


@pytest.mark.parametrize(
    ("settings", "told", "message"),
    [
        ({"redis_url": None}, TOLD, "--redis-url is missing: this Ray has 2 nodes"),
        ({"redis_url": "unix:///redis.sock"}, TOLD, "--redis-url is a unix socket: this Ray has 2 nodes"),
        (
            {},
            {},
            r"HEADRACE_SECRET is not set: this Ray has 2 nodes, and \.headrace/secret is on one of them",
        ),
        ({"host": "127.0.0.1"}, TOLD, "--host 127.0.0.1 is reached from its own node only"),
        ({"host": "localhost"}, TOLD, "--host localhost is reached from its own node only"),
        ({"host": "::1"}, TOLD, "--host ::1 is reached from its own node only"),
    ],
)
def test_what_serves_one_node_only_is_refused_by_name_for_two(
    settings: dict[str, Any], told: dict[str, str], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        check_reach(ServeSettings(**GOOD | settings), told, TWO)


def test_one_node_needs_nothing_of_that() -> None:
    check_reach(ServeSettings(redis_url=None, host="127.0.0.1"), {}, TWO[:1])


def test_two_nodes_of_one_machine_share_its_loopback() -> None:
    check_reach(ServeSettings(**GOOD | {"host": "127.0.0.1"}), TOLD, ["10.0.0.1", "10.0.0.1"])
