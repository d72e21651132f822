"""What listens, where, and that the one port on all addresses refuses whoever has no token."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from ray.serve.generated.serve_pb2 import ASGIRequest

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


def test_only_the_replicas_grpc_ports_listen_beyond_loopback(tape_cluster: Served) -> None:
    beyond = {title for title, address, _ in listeners(tape_cluster) if address not in LOOPBACK}
    assert [title for title in beyond if "ServeReplica" not in title] == []


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
