"""Starting Ray or joining one, with Ray's own calls replaced: what is asked, refused, and left behind."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from cluster import ray_session
from cluster.node_check import Facts, Question, needed_facts, node_facts
from cluster.ray_env import ON_NODES
from cluster.ray_session import RaySession
from cluster.run_dir import RunDir
from cluster.settings import ServeSettings
from cluster.stages import StartError

Calls = list[tuple[str, dict[str, Any]]]
Answers = dict[str, Facts | str]
NODES = [
    {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Alive": True},
    {"NodeID": "b", "NodeManagerAddress": "10.0.0.2", "Alive": True},
    {"NodeID": "c", "NodeManagerAddress": "10.0.0.3", "Alive": False},
]


HERE = "192.0.2.1:6379"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was asked of Ray, in order; every node is as needed, and no Serve runs."""
    seen: Calls = []

    def note(name: str) -> Callable[..., None]:
        return lambda **arguments: seen.append((name, arguments))

    monkeypatch.setattr(ray, "init", note("init"))
    monkeypatch.setattr(ray, "shutdown", note("shutdown"))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: NODES)
    monkeypatch.setattr(serve, "start", note("serve.start"))
    monkeypatch.setattr(serve, "shutdown", note("serve.shutdown"))
    monkeypatch.setattr(ray_session, "_has_serve", lambda: False)
    monkeypatch.setattr(
        ray_session, "_ask", lambda node_ids, question: dict.fromkeys(node_ids, good(question))
    )
    monkeypatch.setattr(ray_session, "check_reach", lambda settings, told, addresses: None)
    knock = ray_session._knock
    monkeypatch.setattr(ray_session, "_knock", lambda address: None if address == HERE else knock(address))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    for name in ON_NODES:
        monkeypatch.setenv(name, "as it was")
    return seen


def good(question: Question) -> Facts:
    return needed_facts(node_facts(question))


def session(**settings: Any) -> RaySession:
    return RaySession(ServeSettings(model="tape:", **settings))


@pytest.mark.parametrize(
    ("found", "said"), [([], "none runs here"), (["a:1", "b:2"], "several run here, name one: a:1, b:2")]
)
def test_auto_is_the_one_ray_of_this_machine(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, found: list[str], said: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", lambda: set(found))
    with pytest.raises(StartError, match=said):
        session().join("auto")
    assert list(calls) == []


def test_a_joined_ray_has_a_proxy_on_every_node_and_goes_on_without_our_serve(
    calls: Calls, tmp_path: Path
) -> None:
    joined = session(host="0.0.0.0", port=1234)
    assert joined.join(HERE) == 2
    joined.start(RunDir(tmp_path))
    joined.close()
    assert [name for name, _ in calls] == ["init", "serve.start", "serve.shutdown", "shutdown"]
    assert calls[0][1]["address"] == HERE
    assert calls[1][1]["proxy_location"] == "EveryNode"
    assert (calls[1][1]["http_options"].host, calls[1][1]["http_options"].port) == ("0.0.0.0", 1234)
    assert not list(tmp_path.iterdir())


def test_a_ray_of_our_own_has_one_proxy_and_ends_with_us(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ray_session, "ray_environment", lambda run_dir, inherited: {"RAY_AUTH_TOKEN": "drawn"}
    )
    own = session(replicas=3, gateways=2)
    own.start(RunDir(tmp_path))
    own.close()
    assert [name for name, _ in calls] == ["init", "serve.start", "shutdown"]
    assert calls[0][1]["address"] == "local"
    assert calls[0][1]["num_cpus"] >= 5
    assert calls[1][1]["proxy_location"] == "HeadOnly"


def test_serve_of_somebody_else_is_refused_and_let_be(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session, "_has_serve", lambda: True)
    refused = session()
    with pytest.raises(StartError, match="Ray Serve runs there already"):
        refused.join(HERE)
    refused.close()
    assert [name for name, _ in calls] == ["init", "shutdown"]


def test_every_difference_of_every_live_node_is_one_line(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(node_ids: list[str], question: Question) -> Answers:
        assert node_ids == ["a", "b"]
        return {
            "a": good(question) | {"ray": "2.59.0", "torch": "1.0"},
            "b": "ModuleNotFoundError: No module named 'cluster'",
        }

    monkeypatch.setattr(ray_session, "_ask", ask)
    with pytest.raises(StartError) as refused:
        session().join(HERE)
    assert refused.value.message.split("\n  ") == [
        "node 10.0.0.1: ray is 2.59.0, must be 2.60.0",
        "node 10.0.0.1: torch is 1.0, must be 2.13.0",
        "node 10.0.0.2: cannot be checked: ModuleNotFoundError: No module named 'cluster'",
    ]
    assert "headrace ray-env ray start" in refused.value.remedy
    assert "serve.start" not in [name for name, _ in calls]


def test_the_reach_of_redis_secret_and_host_is_checked_for_the_live_nodes(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(ray_session, "check_reach", lambda settings, told, addresses: seen.append(addresses))
    session().join(HERE)
    assert seen == [["10.0.0.1", "10.0.0.2"]]


def test_without_the_token_nothing_is_tried(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    with pytest.raises(StartError, match="RAY_AUTH_TOKEN is not set"):
        session().join(HERE)
    assert calls == []


def test_an_address_where_nothing_listens_is_told_at_once(calls: Calls) -> None:
    with socket.socket() as held:  # bound and not listening: refused
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(StartError, match=f"--ray-address {address} cannot be joined: ConnectionRefused"):
            session().join(address)
    assert calls == []


def test_what_ray_says_of_a_cluster_that_it_cannot_join_is_one_line(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**arguments: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(StartError, match="RuntimeError: Version mismatch") as refused:
        session().join(HERE)
    assert "\n" not in refused.value.message
