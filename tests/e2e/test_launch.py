"""Starting and stopping as an operator sees it: clear failures, drains, and nothing left behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from loadtest.server_process import free_port
from tests.e2e.served import Served, processes_of, serve_process


def failed_start(state_dir: Path, *arguments: str, port: int | None = None) -> str:
    """The output of a start that must exit with 2 and leave no process."""
    process = serve_process(state_dir, port or free_port(), *arguments)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert processes_of(state_dir) == []
    assert "Traceback" not in output
    return output


class TestFailures:
    """Each names its stage and the remedy; all of these are found before Ray starts. Those in soak are told
    without a process of their own by the tests of `cluster/preflight.py` and of loading."""

    def test_port_taken(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            output = failed_start(tmp_path, "--model", "tape:", port=port)
        assert f"--port {port} cannot be opened" in output
        assert "failed in stage environment" in output

    def test_model_not_there(self, tmp_path: Path) -> None:
        output = failed_start(tmp_path, "--model", "nowhere.gguf")
        assert "'nowhere.gguf' was not found" in output
        assert "remedy:" in output

    @pytest.mark.soak
    def test_corrupt_gguf(self, tmp_path: Path) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\xff" * 200)
        assert "bad.gguf" in failed_start(tmp_path, "--model", str(tmp_path / "bad.gguf"))

    @pytest.mark.soak
    def test_not_a_gguf(self, tmp_path: Path) -> None:
        (tmp_path / "text.gguf").write_text("hello")
        assert "text.gguf" in failed_start(tmp_path, "--model", str(tmp_path / "text.gguf"))

    @pytest.mark.soak
    def test_wrong_architecture(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
        assert "mamba" in failed_start(tmp_path, "--model", str(tmp_path)).lower()

    @pytest.mark.soak
    def test_too_little_memory(self, tmp_path: Path) -> None:
        output = failed_start(tmp_path, "--kv-memory", "4096G")
        assert "of memory and" in output
        assert "--kv-memory" in output

    @pytest.mark.soak
    def test_context_beyond_what_was_trained(self, tmp_path: Path) -> None:
        output = failed_start(tmp_path, "--max-model-len", "9000")
        assert "9000" in output
        assert "8192" in output

    @pytest.mark.soak
    def test_context_beyond_the_pool(self, tmp_path: Path) -> None:
        output = failed_start(tmp_path, "--max-model-len", "8192", "--kv-memory", "8M", "--dtype", "float32")
        assert re.search(r"use --max-model-len \d+ or less, or --kv-memory \d+ or more", output)

    def test_redis_away(self, tmp_path: Path) -> None:
        output = failed_start(tmp_path, "--model", "tape:", "--redis-url", f"redis://127.0.0.1:{free_port()}")
        assert "failed in stage Redis" in output

    def test_state_dir_in_use(self, tape_cluster: Served) -> None:
        process = serve_process(tape_cluster.state_dir, free_port(), "--model", "tape:")
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "another cluster runs on --state-dir" in output
        assert httpx.get(f"{tape_cluster.url}/ready").status_code == 200


@pytest.mark.soak
def test_ctrl_c_drains_and_a_second_start_serves_the_same_keys(tmp_path: Path) -> None:
    served = Served(tmp_path, "--model", "tape:?step_ms=20")
    key = served.demo_key
    body = {"model": "tape", "prompt": "x", "max_tokens": 100, "stream": True}
    with served.http() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGINT)
        assert list(lines)[-2] == "data: [DONE]"
    output, _ = served.process.communicate(timeout=30)
    assert served.process.returncode == 0, output
    assert processes_of(tmp_path) == []

    again = Served(tmp_path, "--model", "tape:")
    try:
        assert again.demo_key == key
        with again.http() as client:
            assert client.get("/v1/models").status_code == 200
    finally:
        kill_and_check(again)


def kill_and_check(served: Served) -> None:
    """kill -9 of what the operator sees; everything else ends by itself, and with it the output's pipe."""
    served.process.kill()
    served.process.communicate(timeout=30)
    _, left = psutil.wait_procs(processes_of(served.state_dir), timeout=10)  # the record is still written
    assert left == []


def test_ctrl_c_while_starting_leaves_nothing(tmp_path: Path) -> None:
    process = serve_process(tmp_path, free_port(), "--model", "tape:")
    assert process.stdout is not None
    for line in process.stdout:
        if "Redis" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert processes_of(tmp_path) == []


@pytest.mark.soak
def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    served = Served(tmp_path, "--model", "tape:?step_ms=1000")
    body = {"model": "tape", "prompt": "x", "max_tokens": 50, "stream": True}
    with served.http() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        served.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            served.process.wait(timeout=1)
        begun = time.monotonic()
        served.process.send_signal(signal.SIGINT)
        served.process.communicate(timeout=10)
        assert time.monotonic() - begun < 3
    assert processes_of(tmp_path) == []
