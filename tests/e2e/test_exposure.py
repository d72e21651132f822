"""What listens, where, and that the one port on all addresses refuses whoever has no token."""

from __future__ import annotations

import pickle
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import psutil
import pytest
from ray.serve.generated.serve_pb2 import ASGIRequest

from tests.e2e.conftest import NUM_GATEWAYS, NUM_REPLICAS
from tests.e2e.served import Served, processes_of

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def listeners(served: Served) -> Iterator[tuple[str, str, int]]:
    """(process title, address, port) of every TCP socket that the cluster's processes listen on."""
    for process in processes_of(served.state_dir):
        try:
            title = process.name() + " " + " ".join(process.cmdline())
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield title, connection.laddr.ip, connection.laddr.port
        except psutil.NoSuchProcess:
            continue


class Door(NamedTuple):
    """A socket that may listen, and who is kept out of it by what."""

    process: str
    """Pattern of the process' title."""
    ports: range
    guard: str
    """loopback: no one from outside. token: only who knows the cluster's. statistics: loopback, and nothing
    but numbers behind it."""
    most: int
    """So many of one process."""


ANY = range(1024, 65536)
_ACTOR = r"ray::(?:SERVE_REPLICA::\S+:)?ServeReplica:"  # the longer one while it starts
GATEWAY, REPLICA = rf"{_ACTOR}headrace:Gateway", rf"{_ACTOR}engine-[0-9a-f]+:Replica"
ALLOWED = (
    Door(r"gcs_server ", ANY, "loopback", 1),
    Door(r"raylet ", ANY, "loopback", 2),
    Door(r"python\S* .*/autoscaler/_private/monitor.py", ANY, "statistics", 1),
    Door(r"python\S* .*/dashboard/dashboard.py", range(44227, 44228), "statistics", 1),
    Door(r"python\S* .*/dashboard/agent.py", ANY, "loopback", 3),
    Door(r"python\S* .*/runtime_env/agent/main.py", ANY, "loopback", 1),
    Door(r"haproxy ", ANY, "loopback", 3),  # the front, statistics, metrics
    Door(r"ray::(HAProxyManager|ServeController|IDLE)", ANY, "loopback", 1),
    Door(r"ray::ProxyActor", ANY, "loopback", 2),
    Door(
        GATEWAY, range(30000, 31001), "loopback", 1
    ),  # HTTP behind the proxy; it asks for the API key itself
    Door(f"{GATEWAY}|{REPLICA}", ANY, "loopback", 2),  # Ray's own, and metrics
    Door(f"{GATEWAY}|{REPLICA}", ANY, "token", 1),  # gRPC between deployments
)
JOBS_API = 8265


def test_each_socket_is_on_the_list_and_guarded_as_it_says(tape_cluster: Served) -> None:
    taken: Counter[tuple[str, Door]] = Counter()
    for title, address, port in listeners(tape_cluster):
        door = next((door for door in ALLOWED if fits(door, title, address, port, taken)), None)
        assert door is not None, f"nobody allowed {address}:{port} of {title:.120}"
        taken[title, door] += 1
    assert {door.guard for _, door in taken} >= {"loopback", "token"}  # Ray's statistics come when they come


def fits(door: Door, title: str, address: str, port: int, taken: Counter[tuple[str, Door]]) -> bool:
    is_within = address in LOOPBACK or door.guard == "token"
    is_free = taken[title, door] < door.most * num_processes(title)
    return bool(re.match(door.process, title)) and port in door.ports and is_within and is_free


def num_processes(title: str) -> int:
    """Gateways bear one title, and so do replicas."""
    if re.match(GATEWAY, title):
        return NUM_GATEWAYS
    return NUM_REPLICAS if re.match(REPLICA, title) else 1


def test_rays_jobs_and_dashboard_are_not_there(tape_cluster: Served) -> None:
    assert JOBS_API not in {port for _, _, port in listeners(tape_cluster)}


def test_redis_is_reached_by_its_socket_file_only(tape_cluster: Served) -> None:
    assert any(process.name().startswith("valkey") for process in processes_of(tape_cluster.state_dir))
    assert [title for title, _, _ in listeners(tape_cluster) if title.startswith("valkey")] == []


def test_the_front_port_listens_where_it_was_told(tape_cluster: Served) -> None:
    """A proxy that reloads has two processes for a moment, and one look may miss both."""
    addresses: set[str] = set()
    deadline = time.monotonic() + 10
    while not addresses and time.monotonic() < deadline:
        addresses = {address for _, address, port in listeners(tape_cluster) if port == tape_cluster.port}
    assert addresses == {"127.0.0.1"}


class Bomb:
    """Unpickling it makes the file `trace`."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self._trace,)  # type: ignore[return-value]


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer guessed"),)])
def test_a_call_without_the_token_is_refused_and_unpickles_nothing(
    tape_cluster: Served, tmp_path: Path, metadata: tuple[tuple[str, str], ...]
) -> None:
    trace = tmp_path / "unpickled"
    bomb = pickle.dumps(Bomb(trace))
    body = ASGIRequest(pickled_request_metadata=bomb, request_args=bomb, request_kwargs=bomb)
    open_ports = [port for _, address, port in listeners(tape_cluster) if address not in LOOPBACK]
    assert len(open_ports) >= 4  # two gateways, two replicas
    for port in open_ports:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(body.SerializeToString(), timeout=5, metadata=metadata)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert not trace.exists()
